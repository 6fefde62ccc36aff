# SPDX-License-Identifier: Apache-2.0
"""Token inputs of a request: lists of integers are read by code of their own, with the outcome of the general code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from padfree.contract.metadata import InputInfo
from padfree.runtime import SessionError
from padfree.runtime import rows as rows_module
from padfree.runtime.rows import read_column

IDS = InputInfo("input_ids", "tokens", 100, "int32")


def outcome(rows: list[Any]) -> Any:
    """Lengths and values, or the error's message."""
    try:
        column = read_column(IDS, rows)
        packed = column.pack(IDS)
    except SessionError as error:
        return str(error)
    assert packed.dtype == np.int32
    return column.lengths, packed.tolist()


def by_arrays(rows: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The outcome without the code for lists."""
    with monkeypatch.context() as changed:
        changed.setattr(rows_module, "pack_lists", lambda _rows: None)
        return outcome(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [[]],
        [[], [1, 2], []],
        [[5, 6], [7]],
        [[1, True]],
        [[True, 1]],
        [[True]],
        [[2**31 - 1, -(2**31)]],
        [[2**31]],
        [[2**70]],
        [[-(2**31) - 1]],
        [[1.0]],
        [[1, 2.5]],
        [[None]],
        [["1"]],
        [[1], "12"],
        [[1], (2, 3)],
        [(1, 2)],
        [[[1, 2]]],
        [[1, [2]]],
        [[np.int64(7), np.int32(8)]],
        [[np.float32(7)]],
        [[np.True_]],
        [np.array([1, 2]), [3]],
        [7],
        [None],
    ],
)
def test_lists_are_read_as_arrays_are(rows: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(rows) == by_arrays(rows, monkeypatch)


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1) | st.booleans(), max_size=6), max_size=5))
def test_any_integers(rows: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as changed:
        assert outcome(rows) == by_arrays(rows, changed)


def test_the_first_row_that_is_wrong_is_named() -> None:
    assert "sequence 1: type float64" in outcome([[1], [2.0], [3.0]])
    assert "holds 2147483648" in outcome([[1], [2**31]])


def test_lists_are_not_made_arrays_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_rows(*_: object) -> None:
        raise AssertionError("a list was looked at by itself")

    monkeypatch.setattr(rows_module, "_rows", no_rows)
    column = read_column(IDS, [[1, 2], [], [3]])
    assert column.packed is not None
    assert column.packed.flags.writeable
    assert (column.lengths, column.packed.tolist()) == ([2, 0, 1], [1, 2, 3])
