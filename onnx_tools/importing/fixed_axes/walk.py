# SPDX-License-Identifier: Apache-2.0
"""Follows sizes through a graph with fixed axes, and finds out which of its numbers stand for batch or sequence.

Every constant whose size or value could be that of a fixed axis gets an unknown. Operators that need equal sizes bind
them: [B,S,16] + [1,7,16] makes the 7 an S. An unknown that nothing binds is a plain number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_graphsurgeon as gs

from ...analysis import ELEMENTWISE, is_standard
from ...analysis.symbolic import Facts, InputFacts, Poly, infer
from .findings import Findings
from .inputs import Inputs
from .requirements import Requirements
from .targets import Targets
from .unknowns import Unknowns
from .views import ViewRules


class SizeWalk:
    """One walk through a sorted graph."""

    def __init__(self, graph: gs.Graph, unknowns: Unknowns) -> None:
        self.findings = Findings(unknowns)
        self._unknowns = unknowns
        self._inputs = Inputs(graph, self.findings)
        self._requirements = Requirements(self.findings)
        self._makers: Mapping[str, Callable[[gs.Node, InputFacts], Facts | None]] = {
            **Targets(self.findings).rules,
            **ViewRules(self.findings, self._inputs).rules,
        }
        for node in graph.nodes:
            self._visit(node)

    @property
    def facts(self) -> Mapping[str, Facts]:
        """What is known about tensors, by name."""
        return self._inputs.facts

    def _visit(self, node: gs.Node) -> None:
        input_facts = [self._inputs.read(node, position, tensor) for position, tensor in enumerate(node.inputs)]
        own: Facts | None = None
        if is_standard(node, *self._makers):
            own = self._makers[node.op](node, input_facts)
        elif is_standard(node, *self._requirements.rules):
            self._requirements.rules[node.op](node, input_facts)
        elif is_standard(node, *ELEMENTWISE):
            self._requirements.broadcast(node, [item.shape for item in input_facts])
        input_facts = [self._unknowns.with_resolved(item) for item in input_facts]
        results = [own] if own is not None else infer(node, input_facts, self._inputs.facts_of) or []
        for position, tensor in enumerate(node.outputs):
            facts = (
                results[position]
                if position < len(results)
                else Facts(constant=all(item.constant for item in input_facts))
            )
            self._inputs.facts[tensor.name] = self._check(node, tensor, facts)

    def _check(self, node: gs.Node, tensor: gs.Tensor, facts: Facts) -> Facts:
        """The facts; their shape must fit the file's at the file's sizes, and is taken from the file if not known."""
        file_sizes = [size if isinstance(size, int) else None for size in tensor.shape or ()]
        if facts.shape is None:
            if tensor.shape is None or None in file_sizes:
                return facts
            sizes = [int(size) for size in file_sizes if size is not None]
            fresh = self._unknowns.fresh
            shape = tuple(fresh(size) if self._unknowns.may_be_axis(size) else Poly.of(size) for size in sizes)
            return Facts(shape, facts.dtype, facts.uniform(), None, facts.constant)
        if tensor.shape is not None and len(file_sizes) == len(facts.shape):
            for size, number in zip(facts.shape, file_sizes, strict=True):
                if number is not None and all(isinstance(atom, str) for atom in size.atoms()):
                    self._same_number(node, size, number)
        return facts

    def _same_number(self, node: gs.Node, size: Poly, number: int) -> None:
        try:
            value = self._unknowns.value(size)
        except KeyError:
            return
        if value != number:
            raise self.findings.error(node, f"makes an axis of {number} where {size} was expected")
