# SPDX-License-Identifier: Apache-2.0
"""Disentangled attention: rows of Q and K times rows of tables, which the distance to a key or a query chooses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...analysis import Computation, NotComputedError, Positional, is_standard, made_by, node_name
from ...analysis.symbolic import axis_of, permutation
from .. import NoMatch
from ..chains import HeadsSource, scale_of, trace_heads
from .distances import FARTHEST, Biases, reach_of

_MOST_HEAD_SIZE = 128  # the most that the plugin's kernels take
_ALIKE = 1e-5  # the share of the largest number by which rows may differ between lengths: roundoff of float32
_SHORT = 8  # tokens: where a table depends on the length, all shorter lengths are tried, and those near powers of two
_THROUGH = ("Cast", "Identity")

Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GatheredScores:
    """Elements of a product [...,S,L] that an index [...,S,S] chooses in every row, which may then be `transposed`."""

    node: gs.Node
    factor: float
    transposed: bool = False

    def times(self, factor: float) -> GatheredScores:
        """The same, multiplied by a number."""
        return replace(self, factor=self.factor * factor)


@dataclass(frozen=True)
class DisentangledTables:
    """What is added to q_i k_j: q_i k_position[t] + k_j q_position[t], t = clamp(j - i, -R, R) + R."""

    k_position: npt.NDArray[np.float32] | None  # [2R+1,H*D]
    q_position: npt.NDArray[np.float32] | None
    range: int  # R
    kind: str = "disentangled"


def gathered_in(positional: Positional, tensor: gs.Tensor) -> list[GatheredScores] | None:
    """The terms whose sum a tensor [...,S,S] is; None where there is something else in it."""
    node = made_by(tensor, "Add", "GatherElements", "Transpose", *_THROUGH)
    scaled = scale_of(positional.analysis, tensor)
    if scaled is not None:
        terms = gathered_in(positional, scaled[0])
        return None if terms is None else [item.times(scaled[1]) for item in terms]
    if node is None:
        return None
    rank = positional.analysis[tensor].rank or 0
    if is_standard(node, "GatherElements"):
        return [GatheredScores(node, 1.0)] if rank > 2 and axis_of(node, rank) == rank - 1 else None
    if is_standard(node, "Transpose"):
        perm = [*range(rank - 2), rank - 1, rank - 2]
        transposes = rank > 2 and permutation(node, rank) == perm
        terms = gathered_in(positional, node.inputs[0]) if transposes else None
        return None if terms is None else [replace(item, transposed=not item.transposed) for item in terms]
    if is_standard(node, *_THROUGH):
        return gathered_in(positional, node.inputs[0])
    gathered = list[GatheredScores]()
    for item in node.inputs:
        if positional.analysis[item].scalar() == 0.0:
            continue
        terms = gathered_in(positional, item)
        if terms is None:
            return None
        gathered += terms
    return gathered


@dataclass(frozen=True)
class _Term:
    """Rows of Q (with `of_keys`, of K) times the table's column that the index chooses by distance."""

    index: gs.Tensor
    table: gs.Tensor  # [...,D,L]
    computation: Computation | None  # of the table, where nodes make it
    factor: float
    of_keys: bool


class DistanceTables:
    """Makes tables by distance from such terms in one graph."""

    def __init__(self, positional: Positional, biases: Biases) -> None:
        self._positional = positional
        self._biases = biases

    def total(
        self, terms: Sequence[GatheredScores], q: HeadsSource, k: HeadsSource, scale: float
    ) -> DisentangledTables | None:
        """What terms add to scale * q_i k_j, None where there are none. Raises NoMatch where that is something else."""
        if not terms:
            return None
        if q.by_head or q.rotation is not None or k.columns.shape != q.columns.shape:
            raise NoMatch("dot products with tables are added to scores of heads that are rotated, shared or swapped")
        if (size := q.columns.shape[1]) > _MOST_HEAD_SIZE:
            raise NoMatch(
                f"dot products with tables are added to scores of heads of {size}, at most {_MOST_HEAD_SIZE} is known"
            )
        parts = [self._term(item, q, k) for item in terms]
        longest = self._positional.longest
        last = min(longest or FARTHEST, FARTHEST)
        indices = [self._indices(item, last) for item in parts]
        reach = max(reach_of(item[None], longest) for item in indices)
        tables = dict[bool, Float64s]()
        for item, index in zip(parts, indices, strict=True):
            rows = self._rows(item, index, last, reach, q.columns.shape)
            self._check_lengths(item, rows, last, q.columns.shape)
            tables[item.of_keys] = tables.get(item.of_keys, 0.0) + rows * (item.factor / scale)
        float_tables = {of_keys: rows.astype(np.float32) for of_keys, rows in tables.items()}
        return DisentangledTables(float_tables.get(False), float_tables.get(True), reach)

    def _term(self, item: GatheredScores, q: HeadsSource, k: HeadsSource) -> _Term:
        """Checks that rows of Q are multiplied, or of K where the result is transposed. Raises NoMatch."""
        matmul = made_by(item.node.inputs[0], "MatMul")
        what, name = "K" if item.transposed else "Q", node_name(item.node)
        if matmul is None or matmul.inputs[1] not in self._positional:
            raise NoMatch(f"'{name}' chooses among numbers that are no dot products of {what} with a constant table")
        rows, own = trace_heads(self._positional.analysis, matmul.inputs[0], what), k if item.transposed else q
        alike = rows.tensor is own.tensor and rows.order == own.order and not rows.by_head
        if not alike or not np.array_equal(rows.columns, own.columns):
            raise NoMatch(f"'{name}' chooses among dot products of a table with something else than {what}")
        index = item.node.inputs[1]
        while (node := made_by(index, "Expand", *_THROUGH)) is not None:
            index = node.inputs[0]
        if index not in self._positional:
            raise NoMatch(f"'{name}' chooses by an index that is not made of positions alone")
        table = matmul.inputs[1]
        computation = self._positional.computation(table, is_fixed=True)
        return _Term(index, table, computation, item.factor * rows.factor, item.transposed)

    def _indices(self, item: _Term, length: int) -> npt.NDArray[np.int64]:
        """Which column of the table belongs to each distance from a query to a key."""
        candidates = self._biases.among(item.index, length)
        if len(candidates) != 1:
            raise NoMatch(f"'{item.index.name}' chooses otherwise for every head")
        indices: npt.NDArray[np.int64] = candidates[0].astype(np.int64)
        return indices[::-1] if item.of_keys else indices

    def _rows(
        self, item: _Term, index: npt.NDArray[np.int64], length: int, reach: int, heads: tuple[int, ...]
    ) -> Float64s:
        """[2*reach+1,H*D]: the columns that the index chooses from the table for a length."""
        table = self._table(item, length)
        middle = len(index) // 2
        near = index[middle - reach : middle + reach + 1]
        if table.shape[-2] != heads[1] or len(table) not in (1, heads[0]):
            raise NoMatch(f"'{item.table.name}' has the shape {table.shape} where Q has {heads[0]} heads of {heads[1]}")
        if index.min() < 0 or index.max() >= table.shape[-1]:
            raise NoMatch(f"'{item.index.name}' looks beyond the table of {table.shape[-1]} rows for {length} tokens")
        wide = np.broadcast_to(table, (heads[0], *table.shape[1:]))[:, :, near]
        rows: Float64s = np.moveaxis(wide, 2, 0).reshape(len(near), -1)
        return rows

    def _table(self, item: _Term, length: int) -> Float64s:
        """The table [H or 1,D,L] for a length. Raises NoMatch where it is not the same for every sequence."""
        name, batches = item.table.name, list[Float64s]()
        for batch in (1, 2):
            if isinstance(item.table, gs.Constant):
                values = np.asarray(item.table.values)
            elif item.computation is None:
                raise NoMatch(f"'{name}' is no constant table")
            else:
                try:
                    values = item.computation.run(batch, length, {})
                except NotComputedError:
                    raise NoMatch(f"'{name}' cannot be computed for {length} tokens") from None
            batches.append(values.reshape(-1, *values.shape[-2:]).astype(np.float64))
        one, two = batches
        if two.shape[1:] != one.shape[1:] or len(two) not in (len(one), 2 * len(one)):
            raise NoMatch(f"'{name}' has another shape for two sequences")
        if not np.array_equal(two, np.resize(one, two.shape)):
            raise NoMatch(f"'{name}' is not the same for every sequence")
        return one

    def _check_lengths(self, item: _Term, rows: Float64s, last: int, heads: tuple[int, ...]) -> None:
        """Raises NoMatch where the distances among fewer tokens have other rows than these [2R+1,H*D]."""
        reach, apart = len(rows) // 2, _ALIKE * np.abs(rows).max()
        for length in self._others(item, last, reach):
            near = min(reach, length - 1)
            actual = self._rows(item, self._indices(item, length), length, near, heads)
            if np.any(np.abs(actual - rows[reach - near : reach + near + 1]) > apart):
                raise NoMatch(f"'{item.index.name}' chooses other rows by distance among {length} tokens")

    def _others(self, item: _Term, last: int, reach: int) -> Iterator[int]:
        """Other lengths that are tried where the table or the index depends on the length."""
        if self._biases.for_any_length(item.index) and (item.computation is None or "S" not in item.computation.sizes):
            return
        limit = min(last, 2 * reach + 2)
        powers = {(1 << power) + step for power in range(3, limit.bit_length() + 1) for step in (-1, 0, 1)}
        lengths = {*range(1, _SHORT), *powers, *(reach + step for step in range(-2, 3)), limit}
        yield from sorted(length for length in lengths if 0 < length <= limit)
