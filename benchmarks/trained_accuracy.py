# SPDX-License-Identifier: Apache-2.0
"""Trains a small BERT on a task with known answers, and scores it padded in PyTorch and packed in every precision.

    python benchmarks/trained_accuracy.py --json benchmarks/results/local/trained.jsonl

Random weights are kind; trained ones have outliers. The variant `outliers` starts with norm weights and inner
activations far larger than the rest, as published BERT checkpoints have them. Scores are percents of right answers and
of right tags; every engine has to be within 0.1 point of padded PyTorch in fp32. Without TensorRT
(`--without-tensorrt`) rewritten files run in onnxruntime, half precision with every tensor rounded as on a GPU.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import list_operations as task
import numpy as np
import torch
from environment import append_record, environment
from list_model import MAX_LENGTH, Model, export, padded, train
from padfree.builder import build_engine
from padfree.builder.compare.comparison import CompareOptions, compare
from padfree.builder.compare.data import DataOptions
from padfree.builder.padded import build_padded_engine
from padfree.onnx_tools import rewrite, save_model
from padfree.onnx_tools.rounding import with_rounding
from padfree.runtime import Session

SCORE_BATCH = 64
ALLOWED_POINTS = 0.1
COMPARED = 16  # sequences whose tensors are compared one by one
PRECISIONS = ("fp32", "fp16", "bf16")
VARIANTS = ("plain", "outliers")

Logits = tuple[list[np.ndarray], list[np.ndarray]]


def batches(examples: Sequence[task.Example]) -> Iterator[Sequence[task.Example]]:
    """The test set in parts."""
    for start in range(0, len(examples), SCORE_BATCH):
        yield examples[start : start + SCORE_BATCH]


def score(examples: Sequence[task.Example], answers: list[np.ndarray], depths: list[np.ndarray]) -> dict[str, float]:
    """Percents of right answers and of right tags."""
    right = np.mean([int(logits.argmax()) == item.answer for logits, item in zip(answers, examples, strict=True)])
    tags = np.concatenate([rows.argmax(1) == item.depths for rows, item in zip(depths, examples, strict=True)])
    return {"answers_percent": 100 * float(right), "tags_percent": 100 * float(tags.mean())}


def run_torch(model: Model, examples: Sequence[task.Example], device: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Padded PyTorch in fp32."""
    answers, depths = [], []
    with torch.inference_mode():
        for part in batches(examples):
            ids, mask, _, _ = padded(part, device)
            answer_logits, depth_logits = (item.float().cpu().numpy() for item in model(ids, mask))
            answers += list(answer_logits)
            depths += [rows[: len(item.ids)] for rows, item in zip(depth_logits, part, strict=True)]
    return answers, depths


def run_session(path: Path, examples: Sequence[task.Example]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """A plan, or a rewritten file."""
    answers, depths = [], []
    with Session(path) as session:
        for part in batches(examples):
            results = session.run([item.ids for item in part])
            answers += results["answer"]
            depths += results["depths"]
    return answers, depths


def contenders(exported: Path, folder: Path, without_tensorrt: bool) -> Iterator[tuple[str, Path]]:
    """What is scored beside PyTorch: name and file."""
    limits = {"max_batch": SCORE_BATCH, "max_seq_len": MAX_LENGTH}
    if not without_tensorrt:
        path = folder / "padded.plan"
        build_padded_engine(exported, path, **limits)
        yield "padded TensorRT fp16", path
    for precision in PRECISIONS:
        path = folder / f"packed_{precision}.onnx"
        model = rewrite(exported, precision=precision).model
        save_model(model, path)
        if not without_tensorrt:
            path = path.with_suffix(".plan")
            build_engine(model, path, **limits)
        elif precision != "fp32":
            path = folder / f"rounded_{precision}.onnx"
            save_model(with_rounding(model, precision), path)
        yield f"packed {precision}", path


def errors_inside(exported: Path, folder: Path, examples: Sequence[task.Example]) -> dict[str, Any]:
    """The relative error of every tensor of the packed files that `contenders` left in the folder, by precision."""
    ids = [item.ids for item in examples[:COMPARED]]
    data = folder / "tokens.npz"
    np.savez(data, input_ids=np.concatenate(ids), seq_lens=np.asarray([len(row) for row in ids]))
    files = [folder / f"packed_{precision}.onnx" for precision in PRECISIONS]
    report = compare(exported, files, CompareOptions(runners=("onnxrt-packed",), data=DataOptions(data), bisect=True))
    found = {}
    for precision, runner in zip(PRECISIONS, report.runners, strict=True):
        assert runner.bisection is not None
        found[precision] = {
            "outputs": {item.output: asdict(item.total) for item in runner.outputs},
            "tensors": [(item.origin, item.operator, item.errors.relative) for item in runner.bisection.trace],
            "peak": max(max(abs(item.wanted.low), abs(item.wanted.high)) for item in runner.bisection.trace),
        }
    return found


def run_variant(variant: str, arguments: argparse.Namespace) -> bool:
    """Trains and scores one variant; whether all agree with PyTorch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    workers = os.cpu_count() or 1
    training = task.examples(arguments.examples, MAX_LENGTH, seed=1, workers=workers)
    test = task.examples(arguments.test, MAX_LENGTH, seed=2, workers=workers)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Model(arguments.layers, arguments.hidden).to(device)
    if variant == "outliers":
        model.add_outliers()
    start = time.perf_counter()
    train(model, training, arguments.steps, device, seed=0)
    record: dict[str, Any] = {"variant": variant, "train_s": round(time.perf_counter() - start, 1), **vars(arguments)}
    wanted = run_torch(model, test, device)
    scores = {"padded PyTorch fp32": score(test, *wanted)}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        exported = folder / "exported.onnx"
        export(model, str(exported))
        for name, path in contenders(exported, folder, arguments.without_tensorrt):
            found = run_session(path, test)
            scores[name] = score(test, *found) | {
                "largest_difference": max(float(np.abs(a - b).max()) for a, b in zip(wanted[0], found[0], strict=True))
            }
        inside = errors_inside(exported, folder, test)
    agree = True
    base = scores["padded PyTorch fp32"]
    for name, item in scores.items():
        points = max(abs(item[key] - base[key]) for key in base)
        agree &= points <= ALLOWED_POINTS
        print(
            f"{variant:9} {name:22} {item['answers_percent']:7.3f} % {item['tags_percent']:7.3f} %  off by {points:.3f}"
        )
    print(f"{variant:9} largest number inside {inside['fp16']['peak']:.4g}")
    record |= {"scores": scores, "inside": inside, "passed": agree, **environment()}
    if arguments.json is not None:
        append_record(arguments.json, {**record, "json": str(arguments.json)})
    return agree


def main() -> int:
    """Runs the variants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--examples", type=int, default=100_000, help="for training")
    parser.add_argument("--test", type=int, default=4000, help="examples that are scored")
    parser.add_argument("--without-tensorrt", action="store_true", help="score rewritten files in onnxruntime")
    parser.add_argument("--json", type=Path, help="file that a record is added to")
    arguments = parser.parse_args()
    passed = [run_variant(variant, arguments) for variant in arguments.variants]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
