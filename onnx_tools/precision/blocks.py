# SPDX-License-Identifier: Apache-2.0
"""Large arrays piece by piece, so that intermediate results stay in the processor's caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from padfree.contract.machine import cores

from ..files import Array

_ELEMENTS = 1 << 16
_PIECE = 1 << 18  # elements that are worth a thread
_MOST_THREADS = 16  # memory is no faster for more

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_all_cores(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The function's results in the items' order, by threads: numpy releases Python's lock. Raises what it raises."""
    with ThreadPoolExecutor(min(cores(), _MOST_THREADS)) as pool:
        return list(pool.map(function, items))


def blocks(values: Array) -> Iterator[Array]:
    """Flat pieces of an array, in order; arrays of the same shape have pieces of the same sizes."""
    flat = np.ravel(values)
    for first in range(0, flat.size, _ELEMENTS):
        yield flat[first : first + _ELEMENTS]


def pieces(values: Array) -> list[Array]:
    """Flat parts of an array that are large enough for a thread each, in order; `blocks` are smaller."""
    flat = np.ravel(values)
    return [flat[first : first + _PIECE] for first in range(0, flat.size, _PIECE)]


def row_pieces(values: Array) -> list[slice]:
    """Rows of [K,N] that are large enough for a thread, in order."""
    step = max(1, _PIECE // max(1, values.shape[1]))
    return [slice(first, first + step) for first in range(0, len(values), step)]


def map_pieces(function: Callable[[Array], Array], values: Array) -> Array:
    """A function of single numbers over an array: by threads where it is large."""
    if values.size <= _PIECE:
        return function(values)
    result = np.empty(values.size, function(np.ravel(values)[:1]).dtype)

    def fill(part: tuple[Array, Array]) -> None:
        part[0][:] = function(part[1])

    on_all_cores(fill, zip(pieces(result), pieces(values), strict=True))
    return result.reshape(values.shape)


def largest_of(values: Array) -> float:
    """The largest absolute value among the finite numbers; 0 where there is none."""
    return max((float(np.abs(finite_of(part)).max(initial=0.0)) for part in blocks(values)), default=0.0)


def finite_of(values: Array) -> Array:
    """The finite numbers of a tensor: the tensor itself where all are."""
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def exact_product(vector: Array, matrix: Array) -> npt.NDArray[np.float64]:
    """vector [K] times matrix [K,N], computed in float64."""
    rows = max(1, _ELEMENTS // max(1, matrix.shape[1]))
    total = np.zeros(matrix.shape[1])
    for first in range(0, len(vector), rows):
        part = slice(first, first + rows)
        total += vector[part].astype(np.float64) @ matrix[part].astype(np.float64)
    return total
