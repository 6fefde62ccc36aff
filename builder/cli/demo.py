# SPDX-License-Identifier: Apache-2.0
"""`padfree demo`: the whole way on this machine, without downloads and without PyTorch."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from padfree.builder.gpu_files import no_gpu

from .console import error_console, print_line, print_table
from .coverage import print_coverage
from .option_kinds import switch

if TYPE_CHECKING:
    from padfree.builder.demo.demo import Comparison, DemoModel

TINY = "bert-tiny"
BASE = "bert-base"
BASE_LAYERS = 12
QUICK_LAYERS = 2
BASE_TEXTS = 10  # of the demonstration's 40: a padded batch that two cores compute in seconds
QUICK_TEXTS = 4


HELP = "show what padfree does, on this machine"
DESCRIPTION = (
    "Tokenises real texts of very different lengths, rewrites a small exported BERT and a "
    "BERT-base-shaped model with random weights, and compares original (padded) and rewritten (packed) in "
    "onnxruntime and, with a GPU and TensorRT, as engines. Downloads nothing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    switch(parser, "--quick", "two layers and few texts: seconds instead of a minute")


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    from padfree.builder.demo.demo import DEMO_DATA, compare_on_cpu, compare_on_gpu, pick_evenly, prepare, with_texts
    from padfree.builder.doctor import ENGINE_PARTS, diagnose
    from padfree.builder.engine.progress import StageProgress
    from padfree.onnx_tools import load_model
    from padfree.onnx_tools.synthetic import bert_model

    texts = (DEMO_DATA / "texts.txt").read_text(encoding="utf-8").splitlines()
    few = pick_evenly(texts, QUICK_TEXTS if arguments.quick else BASE_TEXTS)
    layers = QUICK_LAYERS if arguments.quick else BASE_LAYERS
    missing = [finding for finding in diagnose() if finding.name in ENGINE_PARTS and finding.state != "ok"]
    comparisons: list[Comparison] = []
    with tempfile.TemporaryDirectory(prefix="padfree-demo-") as name:
        folder = Path(name)
        print_line(f"{TINY}: an exported BERT; rewriting, then running original and rewritten ...")
        tiny = prepare(TINY, load_model(DEMO_DATA / "bert_tiny.onnx"), few if arguments.quick else texts, folder)
        _print_batch(tiny)
        comparisons.append(compare_on_cpu(tiny))
        print_line(f"{BASE}: random weights, {layers} layers; the same ...")
        base = prepare(BASE, bert_model(num_layers=layers), few, folder)
        _print_batch(base)
        comparisons.append(compare_on_cpu(base))
        if not missing:
            print_line(f"{BASE}: building padded and packed engines for all texts, a minute or two each ...")
            with StageProgress(error_console()) as progress:
                comparisons.append(compare_on_gpu(with_texts(base, texts), folder, progress))
    _print_comparisons(comparisons)
    if missing:
        reasons = no_gpu() or "; ".join(f"{finding.name}: {finding.detail}" for finding in missing)
        print_line(f"No engines were built: {reasons}. `padfree doctor` says what to do.")
    return 0


def _print_batch(model: DemoModel) -> None:
    passes = [item for item in model.coverage["passes"] if item["replaced"] or item["missed"]]
    print_coverage({**model.coverage, "passes": passes})
    lengths = sorted(model.batch.seq_lens.tolist())
    print_line(f"{len(lengths)} texts of {lengths[0]} to {lengths[-1]} tokens, {sum(lengths)} in all")


def _print_comparisons(comparisons: list[Comparison]) -> None:
    """A column for each comparison, which fits 80 columns of a terminal."""
    rows = {
        "runs in": [item.engine for item in comparisons],
        "tokens": [f"{item.tokens}" for item in comparisons],
        "with padding": [f"{item.padded_tokens}" for item in comparisons],
        "saved": [f"{100 * item.tokens_saved:.0f} %" for item in comparisons],
        "largest error": [f"{item.largest_error:.1e}" for item in comparisons],
        "padded": [f"{item.padded_ms:.2f} ms" for item in comparisons],
        "packed": [f"{item.packed_ms:.2f} ms" for item in comparisons],
        "faster": [f"{item.speedup:.2f} times" for item in comparisons],
    }
    columns = ("", *(item.name for item in comparisons))
    table = [(name, *values) for name, values in rows.items()]
    print_table("original (padded) and rewritten (packed): same answers, fewer tokens", columns, table)
