# SPDX-License-Identifier: Apache-2.0
"""Rows 0, 1, ... of a constant table, however taken, as a look-up by positions [1,S], which the other passes know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import ELEMENTWISE, REORDERINGS, B, Editor, S, is_standard, producer, token_axis
from ..analysis.symbolic import Analysis, Facts, Index, Poly, Shape, axis_index, axis_of, slice_arguments
from .base import PassResult
from .positions.positions import position_axis
from .shapes import ShapeBuilder, shape_source

NAME = "position tables"
_MOVEMENTS = REORDERINGS | {"Expand"}


@dataclass(frozen=True)
class _PositionRows:
    """Rows `offset` to `offset` + S - 1 of a constant whose sizes other than 1 are [rows, E]."""

    table: gs.Constant
    offset: int

    @property
    def count(self) -> int:
        """How many rows the table has."""
        return next(int(size) for size in self.table.shape if size != 1)


def position_tables(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Gives every reader of such rows, as [S,E] or [1,...,S,...,E], a Gather by positions [1,S] to read."""
    editor = Editor(graph)
    builder = _Builder(editor, ShapeBuilder(editor, shape_source(graph)))
    replaced_count = 0
    for node in list(graph.nodes):
        if is_standard(node, *_MOVEMENTS):
            continue
        for index, tensor in enumerate(node.inputs):
            rows = _rows(analysis, tensor)
            shape = None if rows is None else _rows_shape(analysis, node, tensor)
            if rows is not None and shape is not None and not _is_plain(analysis, tensor):
                node.inputs[index] = builder.look_up(rows, shape)
                replaced_count += 1
    return PassResult(NAME, replaced_count)


def _is_plain(analysis: Analysis, tensor: gs.Tensor) -> bool:
    """Whether the tensor is already what such a Gather makes."""
    node = producer(tensor)
    if node is None or not is_standard(node, "Gather"):
        return False
    return analysis[node.inputs[0]].rank == 2 and analysis[node.inputs[1]].shape == (Poly.of(1), S)


def _rows_shape(analysis: Analysis, node: gs.Node, tensor: gs.Tensor) -> Shape | None:
    """The shape [1,...,S,...,E] in which a node needs the rows; None where the node is better left alone."""
    shape, result = analysis[tensor].shape or (), analysis[node.outputs[0]].shape
    if is_standard(node, *ELEMENTWISE) and result is not None and token_axis(result) is not None:
        shape = (*(Poly.of(1),) * (len(result) - len(shape)), *shape)
    if shape and shape[0] == B and is_standard(node, *ELEMENTWISE):
        others = [analysis[item].shape or () for item in node.inputs if item is not tensor]
        if any(len(other) == len(shape) and other[0] == B for other in others):
            shape = (Poly.of(1), *shape[1:])
    return shape if position_axis(shape) is not None else None


def _rows(analysis: Analysis, tensor: gs.Tensor) -> _PositionRows | None:
    """The rows that a tensor holds, in their order; None where it holds anything else."""
    while True:
        node = producer(tensor)
        if node is None or not _is_rows(analysis[tensor].shape):
            return None
        if is_standard(node, *_MOVEMENTS):
            tensor = node.inputs[0]
        elif is_standard(node, "Slice"):
            return _slice_rows(analysis, node)
        elif is_standard(node, "Gather"):
            return _gather_rows(analysis, node)
        else:
            return None


def _is_rows(shape: Shape | None) -> bool:
    """Whether the sizes other than 1 are S and a number, perhaps with B before them."""
    sizes = [size for size in shape or () if size.constant() != 1]
    sizes = sizes[1:] if sizes[:1] == [B] else sizes
    return len(sizes) == 2 and sizes[0] == S and sizes[1].constant() is not None


def _table(tensor: gs.Tensor, axis: int, offset: int) -> _PositionRows | None:
    """The rows along an axis of a constant [rows, E], with axes of size 1 anywhere; None for other tensors."""
    if not isinstance(tensor, gs.Constant) or not np.issubdtype(tensor.dtype, np.floating) or offset < 0:
        return None
    wide = [position for position, size in enumerate(tensor.shape) if size != 1]
    return _PositionRows(tensor, offset) if len(wide) == 2 and wide[0] == axis % len(tensor.shape) else None


def _slice_rows(analysis: Analysis, node: gs.Node) -> _PositionRows | None:
    limits = slice_arguments(node, [analysis[tensor] for tensor in node.inputs])
    shape = analysis[node.inputs[0]].static_shape()
    if limits is None or shape is None:
        return None
    result = analysis[node.outputs[0]].shape or ()
    along = [axis for axis, size in enumerate(result) if size == S]
    whole = all(size.constant() == before for size, before in zip(result, shape, strict=True) if size != S)
    starts = {axis: start.constant() for start, axis in zip(limits[0], limits[2], strict=True)}
    if len(along) != 1 or not whole or any(step != 1 for step in limits[3]):
        return None
    return _table(node.inputs[0], along[0], -1 if starts.get(along[0]) is None else starts[along[0]] or 0)


def _gather_rows(analysis: Analysis, node: gs.Node) -> _PositionRows | None:
    offset = _offset(analysis[node.inputs[1]])
    return None if offset is None else _table(node.inputs[0], axis_of(node, analysis[node.inputs[0]].rank), offset)


def _offset(indices: Facts) -> int | None:
    """The offset c of indices c, c + 1, ... along the sequence, whose other sizes are 1 or B; None for others."""
    shape, expr = indices.shape or (), indices.expr
    axes = [axis for axis, size in enumerate(shape) if size == S]
    if (
        not isinstance(expr, Index)
        or len(axes) != 1
        or any(size.constant() != 1 for size in shape if size not in (S, B))
    ):
        return None
    return (expr.poly - axis_index(axes[0])).constant()


class _Builder:
    """Makes look-ups, one for all readers of the same rows."""

    def __init__(self, editor: Editor, shapes: ShapeBuilder) -> None:
        self._editor = editor
        self._shapes = shapes
        self._positions: dict[tuple[int, int], gs.Tensor] = {}
        self._tables: dict[str, gs.Constant] = {}
        self._cache: dict[tuple[str, int, tuple[int, ...]], gs.Tensor] = {}

    def look_up(self, rows: _PositionRows, shape: Shape) -> gs.Tensor:
        """The rows in a shape [1,...,S,...,E]."""
        new_axes = tuple(axis for axis, size in enumerate(shape) if axis and size.constant() == 1)
        key = (rows.table.name, rows.offset, new_axes)
        if key in self._cache:
            return self._cache[key]
        editor = self._editor
        table = self._tables.get(rows.table.name)
        if table is None:
            values = rows.table.values
            table = rows.table if values.ndim == 2 else editor.constant(rows.table.name, values.reshape(rows.count, -1))
            self._tables[rows.table.name] = table
        rows_of_table = editor.op("Gather", table, self._slots(rows), stem="position_rows")
        if new_axes:
            rows_of_table = editor.unsqueeze(rows_of_table, *new_axes, stem="position_rows")
        self._cache[key] = rows_of_table
        return rows_of_table

    def _slots(self, rows: _PositionRows) -> gs.Tensor:
        """int64 [1,S]: positions from the first row on."""
        key = (rows.offset, rows.count)
        if key not in self._positions:
            editor = self._editor
            indices = editor.constant("positions", np.arange(rows.offset, rows.count, dtype=np.int64)[None])
            inputs = [indices, editor.integers(0), self._shapes.build([S]), editor.integers(1)]
            self._positions[key] = editor.op("Slice", *inputs, stem="positions")
        return self._positions[key]
