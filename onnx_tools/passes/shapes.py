# SPDX-License-Identifier: Apache-2.0
"""Shapes that are made of the sizes of one input, wherever a pass needs one."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..analysis import Editor, once
from ..analysis.symbolic import Poly, Shape


class ShapeBuilder:
    """Makes shape tensors from the sizes of one input [B,S], so that shapes keep no other tensor alive."""

    def __init__(self, editor: Editor, source: gs.Tensor) -> None:
        self.source = source
        self._editor = editor
        self._nodes = editor.with_stem("size")
        self._tensors: dict[Poly, gs.Tensor] = {}
        self._shape: gs.Tensor | None = None

    def build(self, sizes: list[Poly]) -> gs.Tensor:
        """A 1-D int64 tensor of the sizes."""
        parts = [self._size(size) for size in sizes]
        return self._editor.op("Concat", *parts, stem="shape", axis=0) if parts else self._editor.integers()

    def _size(self, size: Poly) -> gs.Tensor:
        return once(self._tensors, size, lambda: self._make(size))

    def _make(self, size: Poly) -> gs.Tensor:
        constant = size.constant()
        if constant is not None:
            return self._nodes.integers(int(constant))
        if size in (Poly.atom("B"), Poly.atom("S")):
            if self._shape is None:
                self._shape = self._nodes.op("Shape", self.source)
            position = self._nodes.integers(0 if size == Poly.atom("B") else 1)
            return self._nodes.op("Gather", self._shape, position, axis=0)
        total: gs.Tensor | None = None
        for monomial, factor in size.terms:
            product = self._size(Poly.of(factor))
            for atom in monomial:
                product = self._nodes.op("Mul", product, self._size(Poly.atom(atom)))
            total = product if total is None else self._nodes.op("Add", total, product)
        return total if total is not None else self._size(Poly())


def shape_source(graph: gs.Graph) -> gs.Tensor:
    """A graph input [B,S]."""
    return next(tensor for tensor in graph.inputs if list(tensor.shape or ()) == ["B", "S"])


def is_of_sizes(shape: Shape) -> bool:
    """Whether a ShapeBuilder can make the shape: from numbers, B and S alone."""
    return all(size.atoms() <= {"B", "S"} for size in shape)
