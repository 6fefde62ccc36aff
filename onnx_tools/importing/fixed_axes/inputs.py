# SPDX-License-Identifier: Apache-2.0
"""The inputs of nodes: facts about tensors, and constants whose sizes and numbers may be those of fixed axes."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import ELEMENTWISE, OPERATORS, RESHAPES
from ...analysis.symbolic import Facts, Index, Poly, constant_of, facts_of_inputs
from .findings import Findings

_FEW = 8  # elements; longer integer tensors are not shapes

# Operators through which numbers reach shapes and indices.
_NUMBERS = ELEMENTWISE | RESHAPES | {"Concat", "ConstantOfShape", "Expand", "Range"}


class Inputs:
    """The inputs of nodes, with what is known so far about their sizes."""

    def __init__(self, graph: gs.Graph, findings: Findings) -> None:
        self.facts: dict[str, Facts] = facts_of_inputs(graph)  # of tensors, by name
        self._findings = findings
        self._unknowns = findings.unknowns

    def facts_of(self, tensor: gs.Tensor) -> Facts:
        """What is known about a tensor."""
        return self._unknowns.with_resolved(self.facts.get(tensor.name, Facts()))

    def read(self, node: gs.Node, position: int, tensor: gs.Tensor) -> Facts:
        """What is known about an input of a node; the sizes and numbers of a constant become unknowns."""
        if not isinstance(tensor, gs.Constant):
            return self.facts_of(tensor)
        facts, unknowns = constant_of(tensor), self._unknowns
        if node.op in OPERATORS and position in OPERATORS[node.op].parameters:  # parameters keep their numbers
            return facts
        integers = facts.integers()
        counts = isinstance(facts.expr, Index) and facts.expr.poly.constant() is None
        if integers is not None and len(integers) <= _FEW and not counts:
            plain = [item.constant() or 0 for item in integers]
            if node.op not in _NUMBERS or (node.op == "ConstantOfShape" and len(plain) == 1 and plain[0] <= _FEW):
                return facts  # a short ConstantOfShape makes numbers of shapes
            polys = [unknowns.fresh(i) if unknowns.may_be_axis(i) else Poly.of(i) for i in plain]
            self._findings.numbers[id(node), position] = tuple(polys)
            elements = np.empty(len(polys), dtype=object)
            elements[:] = [Index(poly, facts.dtype or "int64") for poly in polys]
            elements = elements.reshape(tensor.shape)
            expr = elements.reshape(-1)[0] if len(polys) == 1 else facts.expr
            return Facts(facts.shape, facts.dtype, expr, elements, True)
        if not any(unknowns.may_be_axis(int(size)) for size in tensor.shape):
            return facts
        shape = tuple(unknowns.fresh(int(i)) if unknowns.may_be_axis(int(i)) else Poly.of(int(i)) for i in tensor.shape)
        self._findings.axes[id(node), position] = shape
        return Facts(shape, facts.dtype, facts.expr, None, True)
