# SPDX-License-Identifier: Apache-2.0
"""Differences that half precision explains, and differences that it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from padfree.builder.cli import main
from padfree.builder.compare.batches import generate
from padfree.builder.compare.candidates import (
    REFERENCE,
    Settings,
    make_subjects,
    open_candidates,
    padded_runner,
)
from padfree.builder.compare.original import describe_original
from padfree.builder.compare.outcomes import compare_runners
from padfree.builder.compare.reasons.roundoff import find_roundoff
from padfree.builder.compare.runners import SessionRunner
from padfree.onnx_tools import save_model
from padfree.onnx_tools.synthetic import bert_model

from . import planted_errors

# Only an engine can differ from its file, and engines need a GPU: here another file runs in place of the engine.
CASES = {
    None: "fp16 loses too many digits in this model: in onnxruntime the same file is 0.00",
    planted_errors.wrong_scale_in_last_layer: "fp16 does not explain it: in onnxruntime the same file is 0.00",
}


@pytest.mark.parametrize("change", CASES)
def test_what_runs_is_held_against_the_file(tmp_path: Path, change: planted_errors.Change | None) -> None:
    path = planted_errors.write_original(tmp_path / "original.onnx")
    model = planted_errors.write_rewritten(path, tmp_path / "model.onnx", precision="fp16")
    other = planted_errors.write_rewritten(path, tmp_path / "other.onnx", change, precision="fp16")
    settings = Settings(tmp_path)
    candidates = open_candidates(path, [model], settings, interface="packed")
    assert candidates[0].metadata is not None
    original = describe_original(path, [candidates[0].metadata], tmp_path)
    batches = generate(original, max_batch=4, max_seq_len=24, kinds=(), seed=0)
    (subject,) = make_subjects(original, candidates, (), batches, settings)
    subject = replace(subject, runner=SessionRunner(original, "other", lambda: other))
    (outcome,) = compare_runners(original, padded_runner(original, REFERENCE, original.path), [subject], batches)
    (cause,) = find_roundoff(original, subject, outcome)
    assert cause.startswith(CASES[change])
    assert find_roundoff(original, replace(subject, precision="fp32"), outcome) == ()
    assert find_roundoff(original, replace(subject, rewritten=None), outcome) == ()


@pytest.mark.slow
def test_a_model_that_multiplies_rounding_errors_is_told_from_one_that_overflows(tmp_path: Path) -> None:
    """The first needs another precision. In the second, the tensors that overflow stay in float32, and it passes."""
    model = bert_model(4, 256, 4, 1024, vocab_size=1000, max_positions=256)
    path, report = tmp_path / "model.onnx", tmp_path / "report.json"
    weights = {item.name: item for item in model.graph.initializer}

    def multiply(name: str, factor: float, channels: slice | list[int] = slice(None)) -> None:
        values = numpy_helper.to_array(weights[name]).copy()
        values[channels] *= np.float32(factor)
        weights[name].CopyFrom(numpy_helper.from_array(values, name))

    def compare() -> int:
        save_model(model, path)
        return main(["compare", str(path), "--precision", "fp16", "--max-seq-len", "128", "--json", str(report)])

    multiply("encoder.layer.2.intermediate.dense.MatMul", 3e4)
    multiply("encoder.layer.2.output.dense.MatMul", 1 / 3e4)
    assert compare() == 0
    multiply("encoder.layer.1.output.LayerNorm.weight", 40, [7, 100])
    assert compare() == 1
    (runner,) = json.loads(report.read_text())["runners"]
    (cause,) = runner["causes"]
    assert cause.startswith("fp16 loses too many digits in this model")
    assert "choose precision fp32" in cause
