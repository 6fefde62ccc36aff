# SPDX-License-Identifier: Apache-2.0
"""Tensors that are made from positions, sizes and constants alone, and what they hold."""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from .computation import Computation, computation_of
from .graph import STANDARD_DOMAINS, is_standard, present
from .symbolic import Analysis

LONGEST_TRIAL = 16384
"""How many positions are tried where nothing limits them."""


class Positional:
    """The tensors of this kind in one sorted graph; `longest` is the length that its tables allow, None: any."""

    def __init__(self, graph: gs.Graph, analysis: Analysis, longest: int | None) -> None:
        self.graph, self.analysis, self.longest = graph, analysis, longest
        self._names = set[str]()
        for node in graph.nodes:
            inputs = present(node.inputs)
            reads_sizes = is_standard(node, "Shape", "Size")
            if node.domain in STANDARD_DOMAINS and inputs and (reads_sizes or all(item in self for item in inputs)):
                self._names.update(tensor.name for tensor in node.outputs)

    def __contains__(self, tensor: gs.Tensor) -> bool:
        return isinstance(tensor, gs.Constant) or tensor.name in self._names

    @property
    def trial_length(self) -> int:
        """How many positions are looked at."""
        return min(self.longest or LONGEST_TRIAL, LONGEST_TRIAL)

    def computation(
        self, tensor: gs.Tensor, *known_tensors: gs.Tensor, is_fixed: bool = False, tokens: Collection[str] = ()
    ) -> Computation | None:
        """How a tensor is made from positions and `known_tensors`; None where inputs other than `tokens` take part.

        It is also None where only constants take part, unless `is_fixed` allows that.
        """
        names = [item.name for item in known_tensors]
        formula = computation_of(self.graph, self.analysis, tensor, known_names=names, is_fixed=is_fixed)
        return None if formula is None or not set(formula.tokens).issubset(tokens) else formula
