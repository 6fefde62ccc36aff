# SPDX-License-Identifier: Apache-2.0
"""Large arrays piece by piece: what is computed on the way stays in the processor's caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_ELEMENTS = 1 << 16

Array = npt.NDArray[Any]


def blocks(values: Array) -> Iterator[Array]:
    """Flat pieces of an array, in order; those of arrays of one shape fit each other."""
    flat = np.ravel(values)
    for first in range(0, flat.size, _ELEMENTS):
        yield flat[first : first + _ELEMENTS]


def largest_of(values: Array) -> float:
    """The largest size among the finite numbers; 0 where there is none."""
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
