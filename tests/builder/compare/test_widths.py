# SPDX-License-Identifier: Apache-2.0
"""Comparisons of models that take several numbers per token: LayoutLM's boxes, and embeddings instead of ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from padfree.builder.compare.comparison import CompareOptions, compare
from padfree.builder.compare.data import DataOptions
from padfree.onnx_tools import save_model

from tests.support.exports import load

NAMES = ("layoutlm_torchscript", "bert_embeddings_ts17")


@pytest.fixture(params=NAMES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    save_model(load(request.param), path)
    return path


def test_drawn_batches(file: Path) -> None:
    (runner,) = compare(file, [], CompareOptions(data=DataOptions(seed=1))).runners
    assert runner.outputs[0].total.rows > 0
    assert max(output.total.absolute for output in runner.outputs) <= 2e-5, runner.verdict
