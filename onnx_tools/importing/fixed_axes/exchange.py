# SPDX-License-Identifier: Apache-2.0
"""Replaces the numbers and constants that stand for sizes of the inputs by these sizes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import ELEMENTWISE, Editor, is_standard, node_name, once
from ...analysis.symbolic import Facts, Poly, Shape
from ...passes.shapes import ShapeBuilder, shape_source
from .unknowns import B, S, Unknowns, ambiguous
from .walk import SizeWalk

_INT64 = np.dtype(np.int64)


def exchange(graph: gs.Graph, walk: SizeWalk, unknowns: Unknowns) -> None:
    """Carries out what a walk has found. Raises RewriteError for constants that differ between sequences."""
    editor, findings = Editor(graph), walk.findings
    work = _Exchange(editor, ShapeBuilder(editor, shape_source(graph)), unknowns, walk.facts)
    for node in list(graph.nodes):
        view = findings.views.get(id(node))
        if view is not None:
            target = work.shapes.build([unknowns.final(size) for size in view])
            node.op, node.attrs, node.inputs = "Reshape", {}, [node.inputs[0], target]
            continue
        for position, tensor in enumerate(node.inputs):
            shape, numbers = findings.axes.get((id(node), position)), findings.numbers.get((id(node), position))
            if shape is not None:
                node.inputs[position] = work.constant(node, tensor, tuple(unknowns.final(size) for size in shape))
            elif numbers is not None:
                node.inputs[position] = work.numbers(tensor, [unknowns.final(number) for number in numbers])


class _Exchange:
    """Makes the new tensors, each once."""

    def __init__(self, editor: Editor, shapes: ShapeBuilder, unknowns: Unknowns, facts: Mapping[str, Facts]) -> None:
        self.shapes = shapes
        self._editor = editor
        self._unknowns = unknowns
        self._facts = facts
        self._tensors: dict[object, gs.Tensor] = {}

    def numbers(self, tensor: gs.Tensor, sizes: list[Poly]) -> gs.Tensor:
        """The sizes as an integer tensor in place of the given one."""
        plain = [size.constant() for size in sizes]
        if isinstance(tensor, gs.Constant) and tensor.values.reshape(-1).tolist() == plain:
            return tensor
        rank, dtype = len(tensor.shape) if isinstance(tensor, gs.Constant) else 1, np.dtype(tensor.dtype or _INT64)
        return once(self._tensors, ("numbers", tuple(sizes), rank, dtype), lambda: self._numbers(sizes, rank, dtype))

    def _numbers(self, sizes: list[Poly], rank: int, dtype: np.dtype) -> gs.Tensor:
        result = self.shapes.build(sizes)
        if rank == 0:
            result = self._editor.op("Squeeze", result, stem="number")
        return result if dtype == _INT64 else self._editor.cast(result, dtype, "number")

    def constant(self, node: gs.Node, tensor: gs.Constant, shape: Shape) -> gs.Tensor:
        """The constant with its axes resized: slots from 0 up to S, and the same values for every sequence."""
        lengths = [axis for axis, size in enumerate(shape) if size == S]
        batches = [axis for axis, size in enumerate(shape) if size == B]
        others = [size for axis, size in enumerate(shape) if axis not in lengths + batches and size.constant() is None]
        if others or len(batches) > 1:
            raise self._error(node, tensor, f"is {others[0] if others else 'the batch squared'} long")
        if not lengths and not batches:
            return tensor
        if is_standard(node, *ELEMENTWISE):
            same = [axis for axis in lengths + batches if self._broadcasts(node, tensor, axis)]
            if same:
                one = once(self._tensors, (tensor.name, tuple(same)), lambda: self._of_one(tensor, same))
                return self.constant(node, one, tuple(Poly.of(1) if i in same else n for i, n in enumerate(shape)))
        return once(self._tensors, (tensor.name, shape), lambda: self._resize(node, tensor, lengths, batches))

    def _broadcasts(self, node: gs.Node, tensor: gs.Constant, axis: int) -> bool:
        """Whether the constant is the same all along an axis that another operand has."""
        from_end = axis - len(tensor.shape)
        one = np.take(tensor.values, [0], axis=axis)
        others = [self._shape_of(item) for item in node.inputs if not isinstance(item, gs.Constant)]
        has_it = any(len(shape) >= -from_end and shape[from_end].constant() is None for shape in others)
        return has_it and np.array_equal(np.broadcast_to(one, tensor.shape), tensor.values)

    def _of_one(self, tensor: gs.Constant, axes: list[int]) -> gs.Constant:
        index = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(len(tensor.shape)))
        return self._editor.constant(f"{tensor.name}_of_one", tensor.values[index])

    def _resize(self, node: gs.Node, tensor: gs.Constant, lengths: list[int], batches: list[int]) -> gs.Tensor:
        editor, values, result = self._editor, tensor.values, tensor
        if batches:
            axis = batches[0]
            one = np.take(values, [0], axis=axis)
            if not np.array_equal(np.broadcast_to(one, values.shape), values):
                return self._count_up(node, tensor, axis)
            result = values = one
        if self._is_table(node, values, lengths):
            return self._rows(tensor, lengths[0])
        if batches:
            result = editor.constant(f"{tensor.name}_of_one", values)
        for axis in lengths:
            result = self._to_length(result, axis, tensor.name)
        if batches:
            sizes = [B if axis == batches[0] else Poly.of(1) for axis in range(values.ndim)]
            result = editor.op("Expand", result, self.shapes.build(sizes), stem=tensor.name)
        return result

    def _is_table(self, node: gs.Node, values: np.ndarray, lengths: list[int]) -> bool:
        """Whether slots choose rows of numbers: written as a look-up, these are packed like position embeddings."""
        if len(lengths) != 1 or not np.issubdtype(values.dtype, np.floating) or not is_standard(node, *ELEMENTWISE):
            return False
        ahead = values.shape[: lengths[0]]
        return all(size == 1 for size in ahead) and bool(np.any(values != np.take(values, [0], axis=lengths[0])))

    def _rows(self, tensor: gs.Constant, axis: int) -> gs.Tensor:
        editor, values = self._editor, tensor.values
        table = editor.constant(f"{tensor.name}_rows", values.reshape(values.shape[axis:]))
        slots = np.arange(values.shape[axis]).reshape([1] * axis + [-1])
        slot_numbers = self._to_length(editor.constant("slots", slots), axis, "slots")
        return editor.op("Gather", table, slot_numbers, stem=tensor.name, axis=0)

    def _to_length(self, tensor: gs.Tensor, axis: int, stem: str) -> gs.Tensor:
        """The first S elements along an axis."""
        editor = self._editor
        limits = editor.integers(0), self.shapes.build([S]), editor.integers(axis)
        return editor.op("Slice", tensor, *limits, stem=stem)

    def _count_up(self, node: gs.Node, tensor: gs.Constant, axis: int) -> gs.Tensor:
        """0, 1, 2, ... along the batch."""
        values, editor = tensor.values, self._editor
        counts = np.arange(values.shape[axis]).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
        if not np.issubdtype(values.dtype, np.integer) or not np.array_equal(counts, values):
            raise self._error(node, tensor, "differs between the sequences of the batch")
        steps = editor.count_to(self._numbers([B], 0, _INT64), "batch_rows")
        sizes = [B if i == axis else Poly.of(1) for i in range(values.ndim)]
        result = editor.in_shape(steps, self.shapes.build(sizes), stem="batch_rows")
        return result if values.dtype == _INT64 else editor.cast(result, values.dtype, "batch_rows")

    def _shape_of(self, tensor: gs.Tensor) -> Shape:
        """The shape; empty for tensors that were made here, which replace constants."""
        facts = self._facts.get(tensor.name, Facts())
        shape = () if facts.constant else facts.shape or ()
        return tuple(self._unknowns.final(size) for size in shape)

    def _error(self, node: gs.Node, tensor: gs.Constant, reason: str) -> Exception:
        where = f"'{node_name(node)}' ({node.op})"
        return ambiguous(self._unknowns.sizes, f"the constant '{tensor.name}' that {where} reads {reason}")
