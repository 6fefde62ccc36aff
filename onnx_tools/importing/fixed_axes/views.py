# SPDX-License-Identifier: Apache-2.0
"""Gathers that move nothing: their indices count through a tensor's own elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import made_by
from ...analysis.symbolic import Facts, Index, InputFacts, Poly, Shape, axis_of, movement
from .findings import Findings
from .inputs import Inputs
from .reshape import align


class ViewRules:
    """Rules by operator: the facts about a gather's result if it is a view of its tensor, otherwise None."""

    def __init__(self, findings: Findings, inputs: Inputs) -> None:
        self._findings = findings
        self._unknowns = findings.unknowns
        self._inputs = inputs
        self.rules: Mapping[str, Callable[[gs.Node, InputFacts], Facts | None]] = {
            "Gather": self._gather, "GatherND": self._gather_nd,
        }  # fmt: skip

    def _gather(self, node: gs.Node, input_facts: InputFacts) -> Facts | None:
        """Elements of [B*S] in their own order are a view of it."""
        x, index = input_facts[0], input_facts[1]
        if not x.shape or x.constant or axis_of(node, len(x.shape)) != 0 or not self._findings.is_axis(x.shape[0]):
            return None
        if index.shape is None or not isinstance(index.expr, Index):
            return None
        indices = self._unknowns.grid(index.expr.poly, index.shape)
        if not np.array_equal(indices.reshape(-1), np.arange(self._unknowns.value(x.shape[0]))):
            return None
        shape = align(x.shape[:1], indices.shape, self._unknowns.value)
        return None if shape is None else self._view(node, x, index.shape, shape + x.shape[1:])

    def _gather_nd(self, node: gs.Node, input_facts: InputFacts) -> Facts | None:
        """Elements x[b, s] at the indices b, s of a grid are x with more axes."""
        x, shape = input_facts[0], input_facts[1].shape
        columns = self._columns(node, input_facts[1])
        if x.shape is None or shape is None or columns is None or len(columns) != len(x.shape) or x.constant:
            return None
        target, axis = [Poly.of(1)] * (len(shape) - 1), -1
        for size, indices in zip(x.shape, columns, strict=True):
            counting = [i for i, n in enumerate(indices.shape) if n > 1 and np.any(np.diff(indices, axis=i))]
            number = self._unknowns.value(size)
            free = axis + 1 if number == 1 else None
            target_axis = counting[0] if len(counting) == 1 else free if not counting else None
            if target_axis is None or target_axis <= axis or target_axis >= len(target):
                return None
            along = np.arange(number).reshape([-1 if i == target_axis else 1 for i in range(indices.ndim)])
            if not np.array_equal(indices, np.broadcast_to(along, indices.shape)):
                return None
            target[target_axis], axis = size, target_axis
        numbers = [self._unknowns.value(size) for size in target]
        return self._view(node, x, shape[:-1], tuple(target)) if numbers == list(columns[0].shape) else None

    def _columns(self, node: gs.Node, index: Facts) -> list[np.ndarray] | None:
        """The indices along each axis, of a constant or of the parts of a Concat."""
        tensor, shape = node.inputs[1], index.shape
        if isinstance(tensor, gs.Constant):
            return [tensor.values[..., column] for column in range(tensor.shape[-1])]
        concat = made_by(tensor, "Concat")
        if concat is None or shape is None or axis_of(concat, len(shape)) != len(shape) - 1:
            return None
        columns = []
        for position, item in enumerate(concat.inputs):
            facts = self._inputs.read(concat, position, item)
            if facts.shape is None or not isinstance(facts.expr, Index) or facts.shape[-1].constant() != 1:
                return None
            columns.append(self._unknowns.grid(facts.expr.poly, facts.shape)[..., 0])
        return columns

    def _view(self, node: gs.Node, x: Facts, before: Shape, shape: Shape) -> Facts:
        for size, target_size in zip(before, shape, strict=False):
            if self._unknowns.resolve(size) != Poly.of(1):
                self._findings.unify(node, size, target_size)
        self._findings.views[id(node)] = shape
        return movement.reshape(x, shape, True)
