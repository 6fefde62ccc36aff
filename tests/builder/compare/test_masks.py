# SPDX-License-Identifier: Apache-2.0
"""Comparisons of models that recognise padding by ids, by levels, by an inverted mask, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from padfree.builder.compare.comparison import CompareOptions, compare
from padfree.builder.compare.data import DataOptions
from padfree.builder.errors import BuildError
from padfree.onnx_tools import save_model

from tests.support.exports import load

CASES = ["ids_mask_types_ts17", "w_mask_levels_tok_ts17", "mask_inverted_ts17", "types_no_table_ts17"]


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("name", CASES)
def test_rewritten_file_agrees_with_the_original(name: str, interface: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save_model(load(name), path)
    report = compare(path, [], CompareOptions(interface=interface, data=DataOptions(seed=1)))
    assert report.passed, report.runners[0].verdict
    assert all(output.total.rows > 0 for output in report.runners[0].outputs)


def test_without_a_mask_batches_have_one_length(tmp_path: Path) -> None:
    path, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    save_model(load("types_no_table_ts17"), path)
    ids = np.arange(1, 10)
    np.savez(data, input_ids=ids, token_type_ids=np.zeros(9, np.int64), seq_lens=np.asarray([4, 5]))
    assert compare(path, [], CompareOptions(data=DataOptions(file=data))).passed


def test_grids_of_other_shapes_are_errors(tmp_path: Path) -> None:
    path, data = tmp_path / "model.onnx", tmp_path / "data.npz"
    save_model(load("types_no_table_ts17"), path)
    np.savez(data, input_ids=np.ones((2, 3), np.int64), token_type_ids=np.ones((2, 4), np.int64))
    with pytest.raises(BuildError, match=r"'token_type_ids' has shape \[2, 4\], 'input_ids' \[2, 3\]"):
        compare(path, [], CompareOptions(data=DataOptions(file=data)))
