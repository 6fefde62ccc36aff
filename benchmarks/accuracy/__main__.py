# SPDX-License-Identifier: Apache-2.0
"""Trains a small BERT on tasks with known answers, and scores it padded in PyTorch and packed in every precision.

    python -m benchmarks.accuracy --json benchmarks/results/local/trained.jsonl
    python -m benchmarks.accuracy --precisions int8 --json benchmarks/results/local/trained_int8.jsonl

Random weights are kind; trained ones have outliers. One model learns three tasks: the value of nested lists
(classification), the depth of every token in them (tagging), and to which document a query belongs (retrieval). The
variant `outliers` is the same model with channels and activations far larger than the rest, as published BERT
checkpoints have them, trained on with them for a few steps. Scores are percents of right answers; every engine has to
be within 0.1 point of padded PyTorch in fp32, those in fp8 within 0.7, in int8 within 1. Without TensorRT
(`--without-tensorrt`) rewritten files run in onnxruntime, half precision with every tensor rounded as on a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .measurement import PRECISIONS, VARIANTS, make_data, outlier_model, run_variant, trained_model
from .scores import HeldOut


def main() -> int:
    """Runs the variants."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS), help="none: train only")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="default: all")
    parser.add_argument("--weights", type=Path, help="file of trained weights; written if it is not there")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--tuning-steps", type=int, default=600, help="training of the variant outliers")
    parser.add_argument("--examples", type=int, default=100_000, help="lists to train on; pairs: a quarter as many")
    parser.add_argument("--test", type=int, default=100_000, help="lists to score, and pairs")
    parser.add_argument("--eager", action="store_true", help="train without CUDA graphs (slow)")
    parser.add_argument("--without-tensorrt", action="store_true", help="score rewritten files in onnxruntime")
    parser.add_argument("--json", type=Path, help="file that a record is added to")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    data = make_data(arguments.examples, arguments.examples // 4, seed=1)
    test = HeldOut(*make_data(arguments.test, arguments.test, seed=2))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = trained_model(arguments, data, device)
    passed = []
    for variant in arguments.variants:
        scored = outlier_model(model, arguments, data, device) if variant == "outliers" else model
        passed.append(run_variant(variant, scored, data, test, arguments, device))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
