# SPDX-License-Identifier: Apache-2.0
"""Exported files of all families against their rewritten files: equal to within 1e-5 in fp32."""

from __future__ import annotations

from pathlib import Path

import pytest
from padfree.builder.compare.comparison import CompareOptions, compare
from padfree.builder.compare.data import DataOptions
from padfree.onnx_tools import RewriteError, save_model

from tests.support.families import all_cases
from tests.support.rewritings import Rewritings

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
# test_families.py compares all forms of BERT, which differ in opset, mask and activation. To `padfree compare` most of
# them are alike, and so are two files of one exporter and family that differ in how attention is written.
FORMS = sorted(case.path for case in all_cases() if case.activation and not case.static)
TWINS = {path.with_stem(path.stem.replace("_sdpa", "_eager")) for path in FIXTURES.rglob("*_sdpa.onnx")}
LEFT_OUT = {*FORMS} - {*FORMS[::8]} | TWINS
FILES = [path for path in sorted(FIXTURES.rglob("*.onnx")) if path not in LEFT_OUT]
HALF_OUTPUTS = 1e-2  # outputs of half-precision originals are rounded at the end, to 11 or 8 bits
EXACT = 1e-5
LOOSER = {
    "t5": 5e-5,  # does not scale its attention scores: large scores make small differences larger
    "modernbert_token_classification": 2e-5,  # logits of up to 3, where others are below 1
}


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(FIXTURES).with_suffix("")))
def test_rewritten_file_agrees_with_the_original(file: Path, rewritings: Rewritings, tmp_path: Path) -> None:
    try:
        rewritten = rewritings.of_file(file)
    except RewriteError as refused:
        pytest.skip(f"not rewritten: {refused}")
    save_model(rewritten.model, tmp_path / "packed.onnx")
    report = compare(file, [tmp_path / "packed.onnx"], CompareOptions(data=DataOptions(seed=1)))
    (runner,) = report.runners
    assert report.passed, runner.verdict
    exact = next((allowed for name, allowed in LOOSER.items() if file.stem.startswith(name)), EXACT)
    allowed = exact if runner.tolerance.absolute < HALF_OUTPUTS else HALF_OUTPUTS
    for output in runner.outputs:
        assert output.total.absolute <= allowed, runner.verdict
        assert output.total.rows > 0
