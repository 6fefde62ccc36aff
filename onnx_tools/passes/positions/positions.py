# SPDX-License-Identifier: Apache-2.0
"""What is computed from positions alone, as rotary angles are: one row per token instead of one per slot."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import ELEMENTWISE, Editor, S, is_output, is_standard, token_axis
from ...analysis.symbolic import (
    Analysis,
    Apply,
    Expr,
    Facts,
    Index,
    Number,
    Poly,
    Shape,
    axis_index,
    axis_of,
    leaves,
    uncast,
)
from ...match import NoMatch
from ..base import Boundary, pack


def spread_positions(graph: gs.Graph, analysis: Analysis, boundary: Boundary) -> bool:
    """Gives positions [1,S,...] the batch's axis where what is made of them meets tokens [B,...,S,...].

    From there on they are tokens like all others, and the layout pass packs them. Returns whether there were any.
    """
    spreading = _PositionNodes(analysis)
    for node in graph.nodes:
        sequence = token_axis(analysis[node.outputs[0]].shape) if node.outputs else None
        if sequence is None or not is_standard(node, *ELEMENTWISE):
            continue
        for tensor in node.inputs:
            same_rank = analysis[tensor].rank == analysis[node.outputs[0]].rank
            if same_rank and position_axis(analysis[tensor].shape) == sequence:
                spreading.add(node, tensor)
    if not spreading.leaves or not spreading.is_closed(graph):
        return False
    editor = Editor(graph)
    batch = editor.op("Shape", boundary.seq_lens, stem="batch_shape")
    for leaf, readers in spreading.leaves.values():
        ones = editor.constant("ones", np.ones((analysis[leaf].rank or 1) - 1, np.int64))
        shape = editor.op("Concat", batch, ones, stem="shape", axis=0)
        spread = editor.op("Expand", leaf, shape, stem=f"{leaf.name}_of_batch")
        for reader in readers:
            for position, item in enumerate(reader.inputs):
                if item is leaf:
                    reader.inputs[position] = spread
    return True


def position_axis(shape: Shape | None) -> int | None:
    """Which axis is the sequence in [1,...,S,...]; None for any other shape."""
    if shape is None or len(shape) < 2 or shape[0].constant() != 1:
        return None
    axes = [axis for axis, size in enumerate(shape) if size == S]
    is_static = all(size.constant() is not None for axis, size in enumerate(shape) if axis not in axes)
    return axes[0] if len(axes) == 1 and is_static else None


class _PositionNodes:
    """Collects the tensors that positions start from, and the nodes between them and the tokens."""

    def __init__(self, analysis: Analysis) -> None:
        self.leaves: dict[str, tuple[gs.Tensor, list[gs.Node]]] = {}
        self._analysis = analysis
        self._inside: dict[int, gs.Node] = {}
        self._ends: set[int] = set()

    def add(self, reader: gs.Node, tensor: gs.Tensor) -> None:
        """Takes in all that leads to an operand of a node that works on tokens, or nothing of it."""
        inside, starts = dict[int, gs.Node](), list[tuple[gs.Node, gs.Tensor]]()
        try:
            self._walk(reader, tensor, inside, starts)
        except NoMatch:
            return
        self._inside |= inside
        self._ends.add(id(reader))
        for node, leaf in starts:
            readers = self.leaves.setdefault(leaf.name, (leaf, []))[1]
            if all(item is not node for item in readers):
                readers.append(node)

    def is_closed(self, graph: gs.Graph) -> bool:
        """Whether nobody else reads what gets another shape."""
        own_nodes = self._ends | set(self._inside)
        tensors = [tensor for node in self._inside.values() for tensor in node.outputs]
        return not any(is_output(graph, item) or any(id(r) not in own_nodes for r in item.outputs) for item in tensors)

    def _walk(
        self, reader: gs.Node, tensor: gs.Tensor, inside: dict[int, gs.Node], starts: list[tuple[gs.Node, gs.Tensor]]
    ) -> None:
        facts = self._analysis[tensor]
        sequence = position_axis(facts.shape)
        if sequence is None:
            raise NoMatch(f"'{tensor.name}' is not made of positions alone")
        if is_made_of_positions(facts, sequence):
            starts.append((reader, tensor))
            return
        node = tensor.inputs[0] if tensor.inputs else None
        if node is None or not self._keeps_batch(node):
            raise NoMatch(f"'{tensor.name}' is not computed from positions")
        if id(node) not in inside:
            inside[id(node)] = node
            for item in node.inputs:
                if S in (self._analysis[item].shape or ()):
                    self._walk(node, item, inside, starts)

    def _keeps_batch(self, node: gs.Node) -> bool:
        """Whether the node computes the same for a batch of more than one."""
        facts = [self._analysis[item] for item in node.inputs]
        rank = self._analysis[node.outputs[0]].rank or 0
        if is_standard(node, *ELEMENTWISE):
            return all(item.rank == rank or S not in (item.shape or ()) for item in facts)
        if is_standard(node, "Gather"):
            return facts[0].constant and facts[0].rank == 2 and axis_of(node, 2) == 0
        if is_standard(node, "MatMul") and not (facts[1].constant and facts[1].rank == 2):
            return False
        operands = facts if node.op == "Concat" else facts[:1]
        is_known = is_standard(node, "Concat", "MatMul", "Slice", "Squeeze", "Transpose", "Unsqueeze")
        keeps_first = is_known and self._analysis.axes_in_result(node)[:1] == (0,)
        return keeps_first and all(S in (item.shape or ()) for item in operands)


def offset_of(facts: Facts, sequence: int) -> int | None:
    """The offset c where the tensor is its index along the sequence plus c, in whatever type; None where it is not."""
    expr = uncast(facts.expr)
    if not isinstance(expr, Index) or any(size.constant() != 1 for size in (facts.shape or ())[1:] if size != S):
        return None
    return (expr.poly - axis_index(sequence)).constant()


def is_made_of_positions(facts: Facts, sequence: int) -> bool:
    """Whether a tensor with no axes but batch and sequence is computed from its index along the sequence alone."""
    expr = facts.expr
    if expr is None or any(size.constant() != 1 for size in (facts.shape or ())[1:] if size != S):
        return False
    lines = [_line(leaf, sequence) for leaf in leaves(expr) if not isinstance(leaf, Number)]
    return None not in lines and any(line is not None and line[0] != 0 for line in lines)


def _line(expr: Expr, sequence: int) -> tuple[int, int] | None:
    """(a, c) where an expression is a * index + c; None where it is something else."""
    if not isinstance(expr, Index):
        return None
    index, step = axis_index(sequence), 0
    for monomial, factor in expr.poly.terms:
        if Poly(((monomial, 1),)) == index:
            step = factor
    offset = (expr.poly - index * step).constant()
    return None if offset is None else (step, offset)


class Positions:
    """The position of every token of a graph, made once."""

    def __init__(self, editor: Editor, boundary: Boundary) -> None:
        self._editor = editor
        self._boundary = boundary
        self._packed: gs.Tensor | None = None
        self._rows: gs.Tensor | None = None

    def row(self, tensor: gs.Tensor, facts: Facts, sequence: int) -> gs.Tensor:
        """A tensor [B,...,1,...] as [T,...], with the row of its sequence for every token."""
        editor = self._editor
        rows = editor.along("Squeeze", tensor, sequence, stem="rows")
        if facts.dtype is not None:
            rows.dtype = np.dtype(facts.dtype)
        return editor.op("Gather", rows, self._sequences(), stem="own_row", axis=0)

    def index_of(self, tensor: gs.Tensor, facts: Facts, rank: int, sequence: int) -> gs.Tensor:
        """A tensor [...,S,...] without a batch as [T,...], with the row of its slot for every token.

        `rank` and `sequence` are those of the tokens that it meets, with whose axes its own line up.
        """
        editor = self._editor
        own = len(facts.shape or ()) - (rank - sequence)
        rows = tensor
        if own:
            order = [own, *(axis for axis in range(len(facts.shape or ())) if axis != own)]
            rows = editor.op("Transpose", rows, stem="rows", perm=order)
        if len(facts.shape or ()) == rank:  # it has the batch's axis, of size 1
            rows = editor.along("Squeeze", rows, 1, stem="rows")
        return editor.op("Gather", rows, self.slots(), stem="own_row", axis=0)

    def pack(self, facts: Facts) -> gs.Tensor | None:
        """A tensor [B,...,S,...] made of positions as [T,...]; None where it holds something else."""
        sequence = token_axis(facts.shape)
        if sequence is None or facts.expr is None or not is_made_of_positions(facts, sequence):
            return None
        result = self._compute(facts.expr, sequence)
        others = range(1, (facts.rank or 0) - 1)
        return self._editor.unsqueeze(result, *others, stem="positions") if others else result

    def _compute(self, expr: Expr, sequence: int) -> gs.Tensor:
        """An expression of the index along the sequence, for every token."""
        editor = self._editor
        if isinstance(expr, Apply):
            operands = [self._compute(arg, sequence) for arg in expr.args]
            if expr.op == "Cast":
                return (
                    operands[0]
                    if operands[0].dtype == np.dtype(expr.dtype)
                    else editor.cast(operands[0], expr.dtype, "positions")
                )
            return editor.op(expr.op, *operands, stem="positions")
        if isinstance(expr, Number):
            return editor.scalar(expr.value, expr.dtype)
        step, offset = _line(expr, sequence) or (0, 0)
        if step == 0:
            return editor.scalar(offset, expr.dtype)
        result = self.slots()
        for op, number, nothing in (("Mul", step, 1), ("Add", offset, 0)):
            if number != nothing:
                result = editor.op(op, result, editor.scalar(number, np.int32), stem="positions")
        return result if result.dtype == np.dtype(expr.dtype) else editor.cast(result, expr.dtype, "positions")

    def slots(self) -> gs.Tensor:
        """int32 [T]: the slot of each token in its row."""
        if self._packed is None:
            self._packed = self._along(1)
        return self._packed

    def _sequences(self) -> gs.Tensor:
        """int32 [T]: which sequence of the batch each token is of."""
        if self._rows is None:
            self._rows = self._along(0)
        return self._rows

    def _along(self, axis: int) -> gs.Tensor:
        """int32 [T]: the index of each token along an axis of [B,S]."""
        editor = self._editor
        shape = editor.op("Shape", self._boundary.mask, stem="slot_shape")
        length = editor.op("Gather", shape, axis, stem="slot_count", axis=0)
        row = editor.cast(editor.count_to(length, "slots"), np.int32, "slots")
        row = editor.unsqueeze(row, 1, stem="slots") if axis == 0 else row
        slots = editor.op("Expand", row, shape, stem="slots")
        return pack(editor, slots, self._boundary, "int32")
