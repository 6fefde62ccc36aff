# SPDX-License-Identifier: Apache-2.0
"""Differences that half precision explains, and those that it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("polygraphy")

from padfree.builder.compare.batches import generate
from padfree.builder.compare.candidates import Settings, make_contenders, make_reference, open_candidates
from padfree.builder.compare.comparing import compare_runners
from padfree.builder.compare.original import describe_original
from padfree.builder.compare.roundoff import find_roundoff
from padfree.builder.compare.runners import SessionRunner

from . import planted

# Only an engine can differ from its file, which takes a GPU: here another file runs in its place.
CASES = {
    None: "fp16 loses too many digits in this model: in onnxruntime the same file is 0.00",
    planted.wrong_scale_in_layer_7: "fp16 does not explain it: in onnxruntime the same file is 0.00",
}


@pytest.mark.parametrize("change", CASES)
def test_what_runs_is_held_against_the_file(tmp_path: Path, change: planted.Change | None) -> None:
    path = planted.write_original(tmp_path / "original.onnx")
    model = planted.write_rewritten(path, tmp_path / "model.onnx", precision="fp16")
    other = planted.write_rewritten(path, tmp_path / "other.onnx", change, precision="fp16")
    settings = Settings(tmp_path)
    candidates = open_candidates(path, [model], settings, interface="packed")
    assert candidates[0].metadata is not None
    original = describe_original(path, [candidates[0].metadata], tmp_path)
    batches = generate(original, max_batch=4, max_seq_len=24, kinds=(), seed=0)
    (contender,) = make_contenders(original, candidates, (), batches, settings)
    contender = replace(contender, runner=SessionRunner(original, "other", lambda: other))
    (outcome,) = compare_runners(original, make_reference(original), [contender], batches)
    (cause,) = find_roundoff(original, contender, outcome)
    assert cause.startswith(CASES[change])
    assert find_roundoff(original, replace(contender, precision="fp32"), outcome) == ()
    assert find_roundoff(original, replace(contender, rewritten=None), outcome) == ()
