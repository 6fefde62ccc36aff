# SPDX-License-Identifier: Apache-2.0
"""What a check refuses: what broken kernels do to some rows or to all of them, and not what precisions lose."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from padfree.builder.engine_check.batches import CheckedBatch
from padfree.builder.engine_check.errors import BOUNDS, Bound, OutputCheck, bound_of, check_output
from padfree.contract.metadata import Metadata, parse_metadata

Array = npt.NDArray[Any]

LENGTHS = (512, 1, 77)
TOKENS = {"name": "hidden", "layout": "packed", "dims": ["T", 96], "original_dims": ["B", "S", 96]}
VECTORS = {"name": "vector", "layout": "per_sequence", "dims": ["B", 1], "original_dims": ["B", 1]}
HALVES: dict[str, Any] = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
BATCH = CheckedBatch("mixed", {}, np.arange(max(LENGTHS)) < np.asarray(LENGTHS)[:, None])


def right() -> Array:
    """Rows with much in common, as trained models give them, and columns of other sizes."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((sum(LENGTHS), 96)) + 0.7 * rng.standard_normal(96)
    return (rows * np.exp(rng.standard_normal(96))).astype(np.float32)


def checked(found: Array, bound: Bound, wanted: Array | None = None, entry: dict[str, Any] = TOKENS) -> OutputCheck:
    return check_output(entry, [BATCH], [right() if wanted is None else wanted], [found], bound)


def zero_row(rows: Array) -> None:
    """A row that no block wrote."""
    rows[300] = 0


def other_row(rows: Array) -> None:
    """Another token's row."""
    rows[300] = rows[301]


def tile(rows: Array) -> None:
    """The last columns of a tile of rows are those of another part of the reduction."""
    rows[256:384, 64:] *= 0.5


def swapped_sequences(rows: Array) -> None:
    """Offsets that are one too large."""
    rows[:] = np.roll(rows, 1, axis=0)


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32", "fp8"])
@pytest.mark.parametrize("change", [zero_row, other_row, swapped_sequences])
def test_rows_that_are_not_right(change: Any, precision: str) -> None:
    found = right().astype(HALVES.get(precision, np.float32)).astype(np.float32)
    assert checked(found, BOUNDS[precision]).problem == ""
    change(found)
    assert "relative error" in checked(found, BOUNDS[precision]).problem


def test_a_part_of_a_tile() -> None:
    found = right()
    tile(found)
    for precision in ("fp16", "bf16", "fp32"):
        result = checked(found, BOUNDS[precision])
        assert result.problem
        assert result.batch == "mixed"


def test_numbers_that_are_not_finite() -> None:
    found = right()
    found[3, 3] = np.nan
    found[5, 7] = np.inf
    for bound in BOUNDS.values():
        assert checked(found, bound).problem == "2 numbers that are infinite or not a number"


def test_a_single_number_near_zero_may_change_its_sign() -> None:
    """The cosine of one number is its sign, which says nothing of a number that is small beside the others."""
    wanted = np.asarray([[1e-4], [1.0], [-0.8]], np.float32)
    found = wanted + np.float32(-2e-4)
    assert checked(found, BOUNDS["fp16"], wanted, VECTORS).problem == ""
    assert checked(-wanted, BOUNDS["bf16"], wanted, VECTORS).problem


def test_whole_numbers_may_differ_where_two_scores_are_equal() -> None:
    wanted = np.arange(100)[:, None]
    found = wanted.copy()
    found[:3] += 1
    entry = {"name": "best", "layout": "packed", "dims": ["T", 1], "original_dims": ["B", "S", 1]}
    assert checked(found, BOUNDS["fp16"], wanted, entry).problem == ""
    assert checked(found, BOUNDS["fp16"], wanted, entry).equal == 0.97
    found[:] += 1
    assert "0% of its integers right" in checked(found, BOUNDS["bf16"], wanted, entry).problem


def described(precision: str, errors: dict[str, float] | None) -> Metadata:
    """Metadata of a model whose rounding was measured."""
    outputs = [{"name": "hidden", "layout": "packed", "dtype": "float32"}]
    inputs = [{"name": name, "role": role, "limit": None, "dtype": "int32"} for name, role in INPUTS.items()]
    raw = {"format": 1, "interface": "packed", "precision": precision, "inputs": inputs, "outputs": outputs}
    measured = {} if errors is None else {"verification": {"half_precision": {"errors": errors, "allowed": 0.2}}}
    return parse_metadata({**raw, **measured}, "test")


INPUTS = {"input_ids": "tokens", "seq_lens": "seq_lens"}


def test_what_is_allowed_follows_what_rounding_costs() -> None:
    """A model that loses little may be off by little; one that loses much is not refused for that."""
    allowed = {error: bound_of(described("bf16", {"hidden": error}), "hidden").relative for error in (0.01, 0.05, 0.2)}
    assert allowed == {0.01: 0.25, 0.05: 0.6, 0.2: 0.8}
    assert bound_of(described("fp16", {"hidden": 0.001}), "hidden").relative == BOUNDS["fp16"].relative
    assert bound_of(described("fp16", None), "hidden").relative == 0.15
    assert bound_of(described("fp32", None), "hidden") == BOUNDS["fp32"]
