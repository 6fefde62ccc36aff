# SPDX-License-Identifier: Apache-2.0
"""How far two models' numbers are apart, measured so that large columns do not hide errors in small ones.

Errors are relative to a column's own root mean square: a column is one number of a token's or a sequence's row. One
root mean square for all would let a column of finfo.min, of NaN or of large numbers hide every error in the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..files import Array

Float64s = npt.NDArray[np.float64]

# A column that is nearly always zero or small (after a GELU), or happens to be so in the few rows there are, has errors
# as large as those of its inputs, which are a fraction of what columns usually are. With n numbers, a fraction of
# 1 / sqrt(n) is left to chance.
FLOOR = 0.5
# Stand-ins for infinity (finfo.min, -1e9, -1e4) exceed any number that a network computes by at least this factor, and
# whole columns may exceed most others by as much: neither says anything about errors in the other numbers.
_GAP = 30.0
# Stand-ins are also at least as large as this: exp(-1000) is 0 in every type.
_LEAST_SENTINEL = 1000.0
# A type with a smaller range may hold stand-ins from here on as its largest number; smaller ones must fit.
_LEAST_CUT_OFF = 1e8
_BLOCK = 1 << 20  # numbers that are measured at a time


@dataclass(frozen=True)
class Scale:
    """What an output's numbers are measured by.

    columns: [C], the size of each column; 0 for integers, which have to be equal. usual: the size of most columns
    together. sentinel: numbers from this magnitude on stand for infinity; each is measured by its own size.
    """

    columns: Float64s
    usual: float
    sentinel: float

    def differences(self, expected: Array, actual: Array, *, largest: float = np.inf) -> Float64s:
        """Every number's difference relative to its column's scale, [R, C]; infinite where only one is special.

        NaN agrees only with NaN, an infinity with the same infinity, and a sentinel with the same sentinel.

        Args:
            expected: [R, C].
            actual: as `expected`, of the same shape.
            largest: largest number of the type that `actual` was computed in; sentinels beyond it may be cut off there.
        """
        a, b = expected.astype(np.float64), actual.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            magnitude = np.abs(a)
            is_sentinel = np.isfinite(a) & (magnitude >= self.sentinel)
            result = np.abs(a - b) / np.where(is_sentinel, magnitude, self.columns)
            is_beyond = is_sentinel & (magnitude >= max(largest, _LEAST_CUT_OFF))
            is_missing = is_sentinel & ~(b * np.sign(a) >= self.sentinel / 2)
            cut_off = is_beyond & (np.abs(b) >= largest) & (np.sign(a) == np.sign(b))
        result[~np.isfinite(a) | is_missing | np.isnan(result)] = np.inf
        result[same | cut_off] = 0.0
        return np.asarray(result, np.float64)

    def parts(self, values: Array, *, of: Array) -> Float64s:
        """Numbers relative to their columns' scales, [R, C]; 0 where they or the right ones, `of`, are special."""
        numbers = values.astype(np.float64)
        right = of.astype(np.float64)
        with np.errstate(invalid="ignore"):
            is_ordinary = np.isfinite(numbers) & np.isfinite(right) & (np.abs(right) < self.sentinel)
        return np.asarray(np.where(is_ordinary, numbers, 0.0) / np.where(self.columns > 0, self.columns, 1.0))

    def size_of(self, number: float, column: int) -> float:
        """What a number of a column is measured by."""
        is_sentinel = np.isfinite(number) and abs(number) >= self.sentinel
        return float(abs(number) if is_sentinel else self.columns[column])


def measure(arrays: Sequence[Array]) -> Scale:
    """The scale of the right numbers of one output in all batches together, each [R, C] with its own R."""
    columns = arrays[0].shape[1]
    if any(array.dtype.kind in "iub" for array in arrays):
        return Scale(np.zeros(columns), 0.0, np.inf)
    sentinel = _sentinel(arrays)
    squares, counts = np.zeros(columns), np.zeros(columns)
    for part in (array[rows] for array in arrays for rows in row_blocks(array)):
        numbers = part.astype(np.float64)
        is_counted = np.isfinite(numbers) & (np.abs(numbers) < sentinel) & (numbers != 0)
        numbers[~is_counted] = 0
        squares += np.einsum("rc,rc->c", numbers, numbers)
        counts += is_counted.sum(0)
    sizes = np.sqrt(squares / np.maximum(counts, 1))
    some = np.sort(sizes[counts > 0])
    if not some.size:
        return Scale(np.ones(columns), 1.0, sentinel)
    usual = float(np.sqrt(np.mean(np.square(some[some <= _GAP * some[(some.size - 1) // 2]]))))
    return Scale(np.maximum(sizes, usual * np.maximum(FLOOR, 1 / np.sqrt(np.maximum(counts, 1)))), usual, sentinel)


def largest_column_error(expected: Array, actual: Array, *, largest: float = np.inf) -> float:
    """The largest root mean square of any column's differences, as `Scale.differences` returns them.

    Args:
        expected: [R, C].
        actual: as `expected`, of the same shape.
        largest: largest number of the type that `actual` was computed in.
    """
    if not expected.size:
        return 0.0
    scale, squares = measure([expected]), np.zeros(expected.shape[1])
    for rows in row_blocks(expected):
        squares += np.square(scale.differences(expected[rows], actual[rows], largest=largest)).sum(0)
    return float(np.sqrt(squares.max() / len(expected)))


def typical_row_error(expected: Array, actual: Array, scale: Scale, *, largest: float = np.inf) -> float:
    """The median of rows' errors: the length of a row's differences relative to its own or, if longer, a usual row's.

    Rounding costs most rows about the same, and a wrong factor in one layer affects all of them.

    Args:
        expected: [R, C].
        actual: as `expected`, of the same shape.
        scale: the scale of the output's numbers.
        largest: largest number of the type that `actual` was computed in.
    """
    if not expected.size:
        return 0.0
    found_errors = list[Float64s]()
    for rows in row_blocks(expected):
        lengths = np.linalg.norm(scale.parts(expected[rows], of=expected[rows]), axis=1)
        differences = np.linalg.norm(scale.differences(expected[rows], actual[rows], largest=largest), axis=1)
        found_errors.append(differences / np.maximum(lengths, expected.shape[1] ** 0.5))
    return float(np.median(np.concatenate(found_errors)))


def row_blocks(array: Array) -> Iterator[slice]:
    """The rows of [R, C], a few at a time: computing with them needs several times their memory."""
    step = max(1, _BLOCK // max(1, array.shape[1]))
    return (slice(start, start + step) for start in range(0, len(array), step))


def _sentinel(arrays: Sequence[Array]) -> float:
    """The magnitude from which numbers stand for infinity: the first large enough one after a gap, else infinity."""
    least = _LEAST_SENTINEL / _GAP
    sizes = [np.abs(array[np.isfinite(array) & (array != 0)]) for array in arrays]
    small = max((float(np.max(item, where=item <= least, initial=0.0)) for item in sizes), default=0.0)
    large = np.sort(np.concatenate([item[item > least].astype(np.float64) for item in sizes]))
    if not small and not large.size:
        return np.inf
    numbers = np.concatenate([[small], large]) if small else large
    beyond = np.flatnonzero((numbers[1:] >= _LEAST_SENTINEL) & (numbers[1:] > _GAP * numbers[:-1])) + 1
    return float(numbers[beyond[0]]) if beyond.size else np.inf
