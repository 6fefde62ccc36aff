# SPDX-License-Identifier: Apache-2.0
"""Columns of constants in another order, as PadfreeLinear's pairs ask for: bit by bit, whatever the type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...analysis import Editor, once
from ...files import held_constant, own_values
from ...operators import ACT_TYPES

PAIR_BLOCK = 16
"""The columns of a block: 8, and their 8 partners."""

Indices = npt.NDArray[np.int64]
_TYPES: Mapping[int, type[np.generic]] = MappingProxyType({2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128})
"""By bytes, types that numpy copies as they are: several numbers that lie side by side move as one of these."""


def indices_of_pairs(count: int) -> tuple[Indices, Indices]:
    """The indices of `count` columns and of their partners; `count` is a multiple of 8."""
    blocks = np.arange(2 * count).reshape(-1, 2, PAIR_BLOCK // 2)
    return blocks[:, 0].reshape(-1), blocks[:, 1].reshape(-1)


@dataclass(frozen=True)
class ColumnPart:
    """Columns of a constant [K,N] or [N], and their indices in another one; without a constant those are zeros."""

    constant: gs.Constant | None
    columns: Indices
    indices: Indices


class Columns:
    """Makes constants of column parts for one graph of one precision, equal ones once."""

    def __init__(self, editor: Editor, precision: str) -> None:
        self._editor = editor
        self._precision = precision
        self._constants: dict[tuple[tuple[str, bytes, bytes], ...], gs.Constant] = {}

    def put(self, parts: Sequence[ColumnPart], stem: str) -> gs.Constant:
        """A constant that these parts fill; at least one of them has columns of a constant."""
        names = ["" if part.constant is None else part.constant.name for part in parts]
        key = tuple(
            (name, part.columns.tobytes(), part.indices.tobytes()) for name, part in zip(names, parts, strict=True)
        )
        return once(self._constants, key, lambda: self._constant(stem, _fill(parts)))

    def of_heads(self, values: gs.Constant, heads: int) -> gs.Constant:
        """The float32 numbers [1,P] of one head, repeated for every head."""
        count = int(values.shape[-1])
        key = ((values.name, b"", heads.to_bytes(4, "little")),)
        if key not in self._constants:
            repeated = np.tile(np.asarray(values.values, np.float32).reshape(count), heads)
            self._constants[key] = self._editor.constant(f"{values.name}_of_heads", repeated)
        return self._constants[key]

    def _constant(self, stem: str, values: npt.NDArray[Any]) -> gs.Constant:
        if self._precision == "fp32":
            return self._editor.constant(stem, values)
        return held_constant(self._editor.fresh(stem), ACT_TYPES[self._precision], values)


def _fill(parts: Sequence[ColumnPart]) -> npt.NDArray[Any]:
    sources = [None if part.constant is None else own_values(part.constant) for part in parts]
    first = next(source for source in sources if source is not None)
    result = np.zeros((*first.shape[:-1], sum(part.indices.size for part in parts)), first.dtype)
    widths = [result.shape[-1], *(source.shape[-1] for source in sources if source is not None)]
    run = _longest_run([index for part in parts for index in (part.columns, part.indices)], widths, first.itemsize)
    for part, source in zip(parts, sources, strict=True):
        if source is not None:
            columns, indices = (_as_slice(index[::run] // run) for index in (part.columns, part.indices))
            runs = _in_runs(np.ascontiguousarray(source), run)
            values = runs[..., columns] if isinstance(columns, slice) else np.take(runs, columns, axis=-1)
            _in_runs(result, run)[..., indices] = values
    return result


def _longest_run(indices: Sequence[Indices], widths: Sequence[int], itemsize: int) -> int:
    """How many columns in a row move together everywhere, as far as numpy has a type of their size."""
    run = max(_TYPES) // itemsize
    while run > 1 and not (
        all(width % run == 0 for width in widths) and all(_is_of_runs(index, run) for index in indices)
    ):
        run //= 2
    return max(1, run)


def _is_of_runs(index: Indices, run: int) -> bool:
    """Whether indices come in runs of that length, each of which begins at a multiple of it."""
    if index.size % run:
        return False
    starts = index[::run]
    return bool((starts % run == 0).all() and (index.reshape(-1, run) == starts[:, np.newaxis] + np.arange(run)).all())


def _as_slice(index: Indices) -> slice | Indices:
    """Indices as a slice where their steps are equal and go up: numpy copies slices many times as fast."""
    step = int(index[1] - index[0]) if index.size > 1 else 1
    if step < 1 or not (np.diff(index) == step).all():
        return index
    return slice(int(index[0]), int(index[-1]) + 1, step)


def _in_runs(values: npt.NDArray[Any], run: int) -> npt.NDArray[Any]:
    """The same memory with one item for each run of columns."""
    return values.view(_TYPES[run * values.itemsize]) if run > 1 else values
