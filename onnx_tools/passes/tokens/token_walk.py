# SPDX-License-Identifier: Apache-2.0
"""A walk through a graph that keeps the views [B,S,...] of its tensors, for the rules that move operators onto them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, once
from ...analysis.symbolic import Analysis, Shape, arguments_with_axes
from ...match import NoMatch
from ..shapes import ShapeBuilder, shape_source
from .token_view import View, Views, is_odd


class TokenWalk:
    """Goes through a graph in order and keeps the views of its tensors."""

    def __init__(self, editor: Editor, analysis: Analysis) -> None:
        self.replaced_count = 0
        self._editor = editor
        self.analysis = analysis
        self.views = Views(editor, analysis, ShapeBuilder(editor, shape_source(editor.graph)))
        self._view_by_name: dict[str, View | None] = {}
        self._transposes: dict[str, gs.Constant] = {}
        self._replacements: list[tuple[gs.Tensor, gs.Tensor]] = []  # tensors of the graph, and what is read instead

    def visit(self, node: gs.Node, rule: Callable[[TokenWalk, gs.Node], list[View]], moves: bool) -> None:
        """Finds the views of a node's outputs by a rule, which computes them on [B,S,...] unless it only `moves`."""
        facts = [self.analysis[tensor] for tensor in [*node.inputs, *node.outputs]]
        if not any(is_odd(item.shape) for item in facts) or any(item.shape is None for item in facts):
            return
        try:
            views = rule(self, node)
        except NoMatch:
            return
        for tensor, view in zip(list(node.outputs), views, strict=True):
            shape = self.analysis[tensor].shape or ()
            self._view_by_name[tensor.name] = view
            if not moves or not is_odd(shape):
                self._replacements.append((tensor, self.views.view_of(view, shape)))
        self.replaced_count += not moves

    def finish(self) -> None:
        """Lets every reader read what has been made; until then, nodes only read tensors that the analysis knows."""
        for old, new in self._replacements:
            self._editor.redirect(old, new)

    def shape(self, tensor: gs.Tensor) -> Shape:
        """The shape of a tensor that has a view."""
        return self.analysis[tensor].shape or ()

    def view(self, tensor: gs.Tensor) -> View:
        """The view of a tensor. Raises NoMatch where there is none."""
        view = once(self._view_by_name, tensor.name, lambda: self.views.seed(tensor))
        if view is None:
            raise NoMatch(f"'{tensor.name}' is no view of [B,S,...]")
        return view

    def whole(self, tensor: gs.Tensor) -> View:
        """A plain view that has batch and sequence. Raises NoMatch where there is none."""
        view = self.views.plain(self.view(tensor))
        if view is None or not view.is_whole:
            raise NoMatch(f"'{tensor.name}' is no view of [B,S,...] in one order")
        return view

    def of_rank(self, tensor: gs.Tensor, rank: int) -> View:
        """A plain view with axes of size 1 before its own. Raises NoMatch where there is none."""
        view = self.views.plain(self.view(tensor))
        if view is None or len(view.groups) > rank:
            raise NoMatch(f"'{tensor.name}' is no view of [B,S,...] in one order")
        return replace(view, groups=((),) * (rank - len(view.groups)) + view.groups)

    def axis_of(self, view: View, axis: int) -> tuple[View, int]:
        """A plain view with an axis of its tensor for one axis of the viewed tensor, and its index. Raises NoMatch."""
        if view.tokens(axis):
            raise NoMatch("the axis holds batch or sequence")
        if view.groups[axis]:
            return view, view.groups[axis][0]
        index = 2 + sum(1 for group in view.groups[:axis] for item in group if item >= 2)
        groups = [tuple(item + (item >= index) for item in group) for group in view.groups]
        groups[axis] = (index,)
        rest = (*view.rest[: index - 2], 1, *view.rest[index - 2 :])
        return self.views.regroup(replace(view, rest=rest, groups=tuple(groups))), index

    def transpose(self, matrix: gs.Constant) -> gs.Constant:
        """A constant matrix transposed, once for all that ask."""
        return once(self._transposes, matrix.name, lambda: self._editor.constant(matrix.name, matrix.values.T))

    def apart(self, view: View, target: Shape) -> View:
        """The view of the viewed tensor reshaped. Raises NoMatch where there is none."""
        parts = self.views.apart(view, target)
        if parts is None:
            raise NoMatch("the reshape mixes batch, sequence and the rest")
        return parts

    def add(self, like: gs.Node, inputs: Sequence[gs.Tensor], attrs: Mapping[str, object] | None = None) -> gs.Tensor:
        """The first output of a new node like another, with other inputs and attributes."""
        return self.make(like.op, inputs, like.outputs[0], {**like.attrs, **(attrs or {})})

    def along(
        self, like: gs.Node, x: gs.Tensor, axes: Sequence[int], attrs: Mapping[str, object] | None = None
    ) -> gs.Tensor:
        """The output of a new node like another that works along axes: of another first input, along other axes."""
        facts = [self.analysis[tensor] for tensor in like.inputs]
        axis_attrs, constants = arguments_with_axes(like, facts, axes)
        inputs = [x, *like.inputs[1:]]
        for position, values in constants.items():
            inputs[position] = self.constant(values)
        return self.add(like, inputs, {**axis_attrs, **(attrs or {})})

    def make(
        self, op: str, inputs: Sequence[gs.Tensor], like: gs.Tensor, attrs: Mapping[str, object] | None = None
    ) -> gs.Tensor:
        """The output of a new node, with the name and type of another tensor."""
        result = self._editor.op(op, *inputs, stem=f"{like.name}_tokens", **(attrs or {}))
        result.dtype = like.dtype
        return result

    def reshape(self, tensor: gs.Tensor, shape: Sequence[int]) -> gs.Tensor:
        """The tensor in another shape."""
        return self._editor.with_stem(f"{tensor.name}_tokens").reshape(tensor, *shape)

    def add_multiple(self, like: gs.Node, inputs: Sequence[gs.Tensor], attrs: Mapping[str, object]) -> list[gs.Tensor]:
        """All outputs of a new node like another, with other inputs and attributes."""
        outputs = [self._editor.variable(f"{item.name}_tokens", item.dtype) for item in like.outputs]
        name = self._editor.fresh(f"{like.name or like.op}_tokens")
        self._editor.graph.nodes.append(gs.Node(like.op, name, {**like.attrs, **attrs}, list(inputs), outputs))
        return list(outputs)

    def constant(self, values: np.ndarray) -> gs.Constant:
        """A new constant."""
        return self._editor.constant("argument", values)
