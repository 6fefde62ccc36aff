# SPDX-License-Identifier: Apache-2.0
"""Errors are measured by their own column: no other column, and no stand-in for infinity, excuses them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from padfree.onnx_tools.analysis.token_elements import packed_rows, token_numbers
from padfree.onnx_tools.precision.halves import to_float, to_half
from padfree.onnx_tools.verification.agreement import Array, largest_column_error, measure
from padfree.onnx_tools.verification.half_precision import LARGEST_ERRORS
from padfree.onnx_tools.verification.token_numbers import RELATIVE_TOLERANCE

F32_MIN, F16_MIN = float(np.finfo(np.float32).min), float(np.finfo(np.float16).min)
BF16_MIN = -3.3895313892515355e38
ROWS, SPARSE = 40, 3
SPECIAL = {"f32min": F32_MIN, "f16min": F16_MIN, "bf16min": BF16_MIN, "-1e9": -1e9, "-1e4": -1e4, "-inf": -np.inf,
           "nan": np.nan, "inf": np.inf, "1e6": 1e6}  # fmt: skip


def output(special: float) -> Array:
    """Columns: 0 to 2 ordinary, 3 zero except in two rows, 4 a stand-in everywhere, 5 one in most rows, 6 small."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((ROWS, 7)).astype(np.float32)
    values[:, SPARSE] = 0
    values[[5, 20], SPARSE] = [0.7, 1.1]
    values[:, 4] = special
    values[rng.random(ROWS) < 0.8, 5] = special
    values[:, 6] *= 1e-3
    return values


def times(column: int, factor: float) -> Callable[[Array], None]:
    def change(values: Array) -> None:
        with np.errstate(over="ignore"):
            values[:, column] = np.where(np.abs(values[:, column]) < 100, values[:, column] * factor, values[:, column])

    return change


def shift(column: int) -> Callable[[Array], None]:
    def change(values: Array) -> None:
        values[:, column] += 0.5

    return change


def put(row: int, column: int, value: float) -> Callable[[Array], None]:
    def change(values: Array) -> None:
        values[row, column] = value

    return change


def move(values: Array) -> None:
    values[:, 5] = np.roll(values[:, 5], 1)


def exchange_columns(values: Array) -> None:
    values[:, [0, 4]] = values[:, [4, 0]]


WRONG = {
    "weights of an ordinary column": times(0, -3),
    "weights of a sparse column": times(SPARSE, -3),
    "ordinary numbers between stand-ins": times(5, -3),
    "bias of an ordinary column": shift(1),
    "bias of a sparse column": shift(SPARSE),
    "nan": put(7, 2, np.nan),
    "infinity": put(7, 2, np.inf),
    "a stand-in": put(7, 2, F32_MIN),
    "a number in place of a stand-in": put(7, 4, 0.3),
    "a stand-in of the other sign": put(7, 4, 1e9),
    "stand-ins in other rows": move,
    "columns exchanged": exchange_columns,
}


@pytest.mark.parametrize("special", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_planted_errors_are_found(change: Callable[[Array], None], special: float) -> None:
    """They also exceed half precision's tolerance, the largest that is ever allowed."""
    wanted = output(special)
    actual = wanted.copy()
    change(actual)
    with np.errstate(invalid="ignore"):
        assert not np.array_equal(wanted, actual, equal_nan=True)
    assert not measure([wanted]).differences(wanted, actual).max() <= RELATIVE_TOLERANCE
    for allowed in LARGEST_ERRORS.values():
        assert not largest_column_error(wanted, actual) <= allowed


def test_errors_of_a_small_column_are_found_in_float32() -> None:
    wanted = output(F32_MIN)
    actual = wanted.copy()
    actual[:, 6] *= -3
    assert not measure([wanted]).differences(wanted, actual).max() <= RELATIVE_TOLERANCE


@pytest.mark.parametrize("special", SPECIAL.values(), ids=SPECIAL)
def test_rounding_agrees(special: float) -> None:
    wanted = output(special)
    half = to_float(to_half(wanted))
    cut = np.clip(half, -65504, 65504) if abs(special) >= 1e8 else half
    small = np.float32(1 + 2**-20) * wanted if np.isfinite(special) and abs(special) < 1e38 else wanted
    assert measure([wanted]).differences(wanted, small).max() <= RELATIVE_TOLERANCE
    if not 65504 < abs(special) < 1e8:  # numbers that are neither in the type's range nor surely a stand-in are lost
        assert largest_column_error(wanted, half, largest=65504) <= LARGEST_ERRORS["fp16"]
        if np.isfinite(special):
            assert largest_column_error(wanted, cut, largest=65504) <= LARGEST_ERRORS["fp16"]
    short = (wanted.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert largest_column_error(wanted, short, largest=3.38e38) <= LARGEST_ERRORS["bf16"]


def test_what_overflows_is_no_stand_in() -> None:
    wanted = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32)
    wanted[3, 1] = 7e4
    assert not largest_column_error(wanted, to_float(to_half(wanted)), largest=65504) <= LARGEST_ERRORS["fp16"]


def test_few_rows_may_be_small_by_chance() -> None:
    """One number in a thousand is a thousandth of the others: its error is as large as its inputs'."""
    rng = np.random.default_rng(0)
    for rows in (1, 2, 5):
        wanted = rng.standard_normal((rows, 1000))
        actual = wanted + 1e-5 * rng.standard_normal(wanted.shape)
        assert measure([wanted]).differences(wanted, actual).max() <= RELATIVE_TOLERANCE


def test_integers_are_equal_or_not() -> None:
    wanted = np.asarray([[30000], [20000], [5]])
    assert measure([wanted]).differences(wanted, wanted).max() == 0
    assert np.isinf(measure([wanted]).differences(wanted, wanted + np.eye(3, 1, -1, np.int64)).max())


def test_outputs_of_zeros_and_constants() -> None:
    zeros = np.zeros((4, 2), np.float32)
    assert measure([zeros]).differences(zeros, zeros).max() == 0
    assert measure([zeros]).differences(zeros, zeros + 1).max() == 1
    constant = np.full((4, 2), 1e5, np.float32)  # the same number everywhere, and no other for comparison
    assert not measure([constant]).differences(constant, constant * 1.001).max() <= RELATIVE_TOLERANCE


def test_rows_of_every_shape() -> None:
    mask = np.arange(3) < np.asarray([3, 1])[:, None]
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 4, 3, 3))
    rows = token_numbers(weights, ("B", 4, "S", "S"), mask)
    assert rows.values.shape == (10, 4)
    assert rows.axes == ("B", "S", "S")
    for index, row in zip(rows.indices, rows.values, strict=True):
        np.testing.assert_array_equal(row, weights[index[0], :, index[1], index[2]])
    assert {tuple(index) for index in rows.indices[-1:].tolist()} == {(1, 0, 0)}
    hidden = rng.standard_normal((2, 3, 5))
    tokens = hidden[mask]
    for values, dims in (
        (hidden, ("B", "S", 5)),
        (hidden, ("B", "S")),
        (hidden.reshape(6, 5), ("B*S", 5)),
        (hidden.transpose(0, 2, 1), ("B", 5, "S")),
        (hidden.transpose(1, 0, 2), ("S", "B", 5)),
    ):
        np.testing.assert_array_equal(token_numbers(values, dims, mask).values, tokens)
    np.testing.assert_array_equal(packed_rows(np.concatenate([tokens, hidden[1]]), mask).values, tokens)
    assert token_numbers(hidden, None, mask).values.shape == (30, 1)
    assert token_numbers(np.asarray(3.0), (), mask).values.tolist() == [[3.0]]
    assert token_numbers(hidden[0], (3, 5), mask).values.shape == (1, 15)
    assert token_numbers(hidden[0], ("S", 5), mask).values.shape == (3, 5)


def test_large_outputs_are_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = output(F32_MIN)
    actual = wanted + np.float32(1e-3)
    whole = largest_column_error(wanted, actual), measure([wanted]).columns
    monkeypatch.setattr("padfree.onnx_tools.verification.agreement._BLOCK", 20)
    assert largest_column_error(wanted, actual) == pytest.approx(whole[0])
    np.testing.assert_allclose(measure([wanted]).columns, whole[1])
