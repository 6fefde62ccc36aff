# SPDX-License-Identifier: Apache-2.0
"""What operators require of sizes: equal sizes are bound; a batch or sequence is refused where it changes results."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_graphsurgeon as gs

from ...analysis.symbolic import InputFacts, Poly, Shape, axes_of_node, axis_of
from .findings import Findings


class Requirements:
    """Rules by operator; none of them makes facts."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._unknowns = findings.unknowns
        self.rules: Mapping[str, Callable[[gs.Node, InputFacts], None]] = {
            "Concat": self._concat, "Gemm": self._gemm, "MatMul": self._matmul, "ReduceMean": self._mean,
            "Split": self._split, "Squeeze": self._squeeze,
        }  # fmt: skip

    def broadcast(self, node: gs.Node, shapes: list[Shape | None]) -> None:
        """Binds the sizes of operands along each axis: they are equal, except for sizes of 1."""
        full_shapes = [shape for shape in shapes if shape is not None]
        for axis in range(1, max((len(shape) for shape in full_shapes), default=0) + 1):
            sizes = [shape[-axis] for shape in full_shapes if len(shape) >= axis]
            sizes = [size for size in sizes if self._unknowns.resolve(size) != Poly.of(1)]
            for size in sizes[1:]:
                self._findings.unify(node, sizes[0], size)

    def _concat(self, node: gs.Node, input_facts: InputFacts) -> None:
        shapes = [item.shape for item in input_facts]
        first = shapes[0]
        if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
            return
        along = axis_of(node, len(first))
        for axis, size in enumerate(first):
            for shape in shapes[1:]:
                if axis != along and shape is not None:
                    self._findings.unify(node, size, shape[axis])

    def _matmul(self, node: gs.Node, input_facts: InputFacts) -> None:
        a, b = input_facts[0].shape, input_facts[1].shape
        if a is None or b is None or len(a) < 2 or len(b) < 2:
            return
        self._contract(node, input_facts, a[-1], b[-2])
        self.broadcast(node, [a[:-2], b[:-2]])

    def _gemm(self, node: gs.Node, input_facts: InputFacts) -> None:
        a, b = input_facts[0].shape, input_facts[1].shape
        if a is not None and b is not None:
            first, second = int(node.attrs.get("transA", 0)), int(node.attrs.get("transB", 0))
            self._contract(node, input_facts, a[1 - first], b[second])

    def _contract(self, node: gs.Node, input_facts: InputFacts, first: Poly, second: Poly) -> None:
        self._findings.unify(node, first, second)
        if input_facts[0].constant != input_facts[1].constant and self._findings.is_axis(first):
            raise self._findings.error(node, "has weights for every position of the sequence or the batch")

    def _mean(self, node: gs.Node, input_facts: InputFacts) -> None:
        axes, shape = axes_of_node(node, input_facts), input_facts[0].shape
        if shape is not None and any(self._findings.is_axis(shape[axis]) for axis in axes or range(len(shape))):
            raise self._findings.error(node, "averages over all positions, padding included")

    def _split(self, node: gs.Node, input_facts: InputFacts) -> None:
        shape = input_facts[0].shape
        if shape is not None and self._findings.is_axis(shape[axis_of(node, len(shape))]):
            raise self._findings.error(node, "cuts the sequence or the batch into parts")

    def _squeeze(self, node: gs.Node, input_facts: InputFacts) -> None:
        axes, shape = axes_of_node(node, input_facts), input_facts[0].shape
        if shape is not None and axes is None:
            axes = [axis for axis, size in enumerate(shape) if self._unknowns.value(size) == 1]
        if shape is not None and any(self._findings.is_axis(shape[axis]) for axis in axes or ()):
            raise self._findings.error(node, "drops the axis of the batch")
