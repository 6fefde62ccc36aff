# SPDX-License-Identifier: Apache-2.0
"""Lifts what is computed from positions as [S,...], such as rotary angles by outer products, to [1,S,...]."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ...analysis import ELEMENTWISE, Editor, S, is_slot_shape, is_standard, once, producer, token_axis
from ...analysis.symbolic import Analysis, arguments_with_axes, axes_of, permutation
from ...match import NoMatch
from .positions import position_axis

_MAX_DEPTH = 64


def lift_positions(graph: gs.Graph, analysis: Analysis) -> bool:
    """Gives tensors made of positions the batch's axis where they get it later or meet tokens; returns if any did."""
    lift, changed = _Lift(Editor(graph), analysis), False
    for node in list(graph.nodes):
        shape = analysis[node.outputs[0]].shape if node.outputs else None
        if is_standard(node, "Unsqueeze") and position_axis(shape) is not None:
            changed = lift.unsqueeze(node) or changed
        elif is_standard(node, *ELEMENTWISE) and shape is not None and token_axis(shape) is not None:
            for position, tensor in enumerate(node.inputs):
                changed = lift.operand(node, position, tensor, len(shape), token_axis(shape) or 1) or changed
    return changed


class _Lift:
    """Makes tensors [1,S,...] of tensors [S,...], each once."""

    def __init__(self, editor: Editor, analysis: Analysis) -> None:
        self._editor = editor
        self._analysis = analysis
        self._cache: dict[str, gs.Tensor] = {}

    def unsqueeze(self, node: gs.Node) -> bool:
        """Lifts what an Unsqueeze reads that adds the batch's axis; returns whether it could."""
        x = self._analysis[node.inputs[0]]
        new_axes = sorted(self._analysis.axes_along(node) or ())
        if not x.shape or 0 not in new_axes:
            return False
        if x.shape[0].constant() == 1:  # either of the two axes of size 1 may be the first
            source, rest = node.inputs[0], [1 if axis == 0 else axis for axis in new_axes]
            if 1 in new_axes:
                return False
        else:
            if x.shape[0] != S:
                return False
            try:
                source, rest = self._lift_once(node.inputs[0], _MAX_DEPTH), [axis for axis in new_axes if axis]
            except NoMatch:
                return False
        output = node.outputs[0]
        if rest:
            self._editor.unsqueeze(source, *rest, output=output)
        else:
            self._editor.op("Identity", source, output=output)
        return True

    def operand(self, node: gs.Node, position: int, tensor: gs.Tensor, rank: int, sequence: int) -> bool:
        """Lifts an operand [S,...] of a node that works on tokens; returns whether it could."""
        shape = self._analysis[tensor].shape
        if not shape or shape[0] != S or len(shape) == rank or not is_slot_shape(shape, rank, sequence):
            return False
        try:
            source = self._lift_once(tensor, _MAX_DEPTH)
        except NoMatch:
            return False
        missing = list(range(1, sequence))
        if missing:
            source = self._nodes(tensor).unsqueeze(source, *missing)
        node.inputs[position] = source
        return True

    def _lift_once(self, tensor: gs.Tensor, depth: int) -> gs.Tensor:
        """[1,S,...] of a tensor [S,...] made of positions. Raises NoMatch where it is made of something else."""
        return once(self._cache, tensor.name, lambda: self._lift(tensor, depth))

    def _lift(self, tensor: gs.Tensor, depth: int) -> gs.Tensor:
        facts, node = self._analysis[tensor], producer(tensor)
        shape = facts.shape
        if not shape or shape[0] != S or any(size.constant() is None for size in shape[1:]):
            raise NoMatch(f"'{tensor.name}' is not made of positions")
        if facts.expr is not None and axes_of(facts.expr) == {0} and len(shape) == 1:
            return self._nodes(tensor).unsqueeze(tensor, 0)
        if node is None or depth == 0 or len(node.outputs) != 1:
            raise NoMatch(f"'{tensor.name}' is not made of positions")
        input_facts, rank = [self._analysis[item] for item in node.inputs], len(shape)
        inputs = [
            self._lift_once(item, depth - 1) if S in (self._analysis[item].shape or ()) else item
            for item in node.inputs
        ]
        if is_standard(node, *ELEMENTWISE):
            if any((item.rank or 0) != rank for item in input_facts if S in (item.shape or ())):
                raise NoMatch("operands of several ranks")
            if any(item.shape is None or (item.rank or 0) > rank for item in input_facts):
                raise NoMatch("operands of unknown ranks")
            return self._nodes(tensor).op(node.op, *inputs, **node.attrs)
        if is_standard(node, "MatMul") and input_facts[1].constant and input_facts[1].rank == 2 and rank > 1:
            return self._nodes(tensor).op("MatMul", *inputs)
        if is_standard(node, "Concat", "Slice", "Squeeze", "Unsqueeze"):
            return self._lift_along_axes(node, inputs)
        if is_standard(node, "Transpose") and (order := permutation(node, rank))[0] == 0:
            return self._nodes(tensor).op("Transpose", *inputs, perm=[0, *(axis + 1 for axis in order)])
        if is_standard(node, "Reshape"):
            sizes = [size.constant() or 0 for size in shape[1:]]
            return self._nodes(tensor).reshape(inputs[0], 1, -1, *sizes)
        raise NoMatch(f"'{tensor.name}' is not made of positions")

    def _lift_along_axes(self, node: gs.Node, inputs: Sequence[gs.Tensor]) -> gs.Tensor:
        """A node on operands with one axis more in front of theirs. Raises NoMatch where it works along the first."""
        facts, tensor = [self._analysis[item] for item in node.inputs], node.outputs[0]
        axes, is_join = self._analysis.axes_along(node), node.op == "Concat"
        is_movable = len({item.rank for item in facts}) == 1 if is_join else all(item.constant for item in facts[1:])
        if axes is None or 0 in axes or not is_movable:
            raise NoMatch(f"'{tensor.name}' is not made of positions")
        attrs, constants = arguments_with_axes(node, facts, [axis + 1 for axis in axes])
        new_inputs = {position: self._editor.integers(*values) for position, values in constants.items()}
        operands = [new_inputs.get(position, item) for position, item in enumerate(inputs)]
        return self._nodes(tensor).op(node.op, *operands, **attrs)

    def _nodes(self, like: gs.Tensor) -> Editor:
        return self._editor.with_stem(f"{like.name}_of_batch")
