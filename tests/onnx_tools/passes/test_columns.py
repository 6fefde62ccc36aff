# SPDX-License-Identifier: Apache-2.0
"""Columns that move in runs land where single columns would."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
import pytest
from padfree.onnx_tools.analysis import Editor
from padfree.onnx_tools.passes.linear.columns import ColumnPart, Columns, indices_of_pairs

WIDTH = 48


def one_by_one(parts: Sequence[ColumnPart], rows: int) -> npt.NDArray[np.float32]:
    """The columns, each moved on its own."""
    result = np.zeros((rows, sum(part.indices.size for part in parts)), np.float32)
    for part in parts:
        for column, index in zip(part.columns, part.indices, strict=True):
            result[:, index] = 0 if part.constant is None else part.constant.values[:, column]
    return result


@pytest.mark.parametrize("shift", [0, 8, 4, 2, 1])
@pytest.mark.parametrize("form", ["pairs", "zeros", "order", "reverse"])
def test_runs(form: str, shift: int) -> None:
    """Runs of any length and step: both halves of pairs, zeros for one of them, and other orders."""
    rng = np.random.default_rng(shift)
    one, other = (gs.Constant(name, rng.standard_normal((3, WIDTH)).astype(np.float32)) for name in ("one", "other"))
    every = np.arange(WIDTH)
    first, second = indices_of_pairs(WIDTH)
    parts = {
        "pairs": [ColumnPart(one, np.roll(every, shift), first), ColumnPart(other, every, second)],
        "zeros": [ColumnPart(one, np.roll(every, shift), first), ColumnPart(None, every, second)],
        "order": [ColumnPart(one, rng.permutation(WIDTH // 8).repeat(8) * 8 + every % 8, np.roll(every, shift))],
        "reverse": [ColumnPart(one, every[::-1], np.roll(every, shift))],
    }[form]
    columns = Columns(Editor(gs.Graph()), "fp32")
    np.testing.assert_array_equal(columns.put(parts, "result").values, one_by_one(parts, 3))
