# SPDX-License-Identifier: Apache-2.0
"""Walks a graph in order and collects the facts about every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import dtype_name
from .expr import Element, axis_index
from .facts import MAX_ELEMENTS, MAX_PATTERN, Facts, constant_facts
from .poly import Poly
from .rules import infer

B, S, T = Poly.atom("B"), Poly.atom("S"), Poly.atom("T")


@dataclass(frozen=True)
class Analysis:
    """Facts by tensor name."""

    facts: Mapping[str, Facts]

    def __getitem__(self, tensor: gs.Tensor) -> Facts:
        return self.facts.get(tensor.name, Facts())


def analyse(graph: gs.Graph) -> Analysis:
    """Facts about every tensor of a sorted graph, from its inputs (dimensions named B, S, T) onward."""
    facts = facts_of_inputs(graph)
    for node in graph.nodes:
        learn(facts, node)
    return Analysis(facts)


def facts_of_inputs(graph: gs.Graph) -> dict[str, Facts]:
    """What is known before the first node: for a walk that changes the graph on its way."""
    return {tensor.name: _input_facts(tensor) for tensor in graph.inputs}


def learn(facts: dict[str, Facts], node: gs.Node) -> None:
    """Adds the facts about a node's constants and outputs; those about its other inputs are there."""
    for tensor in node.inputs:
        if isinstance(tensor, gs.Constant) and tensor.name not in facts:
            facts[tensor.name] = constant_of(tensor)
    known = [facts.get(tensor.name, Facts()) for tensor in node.inputs]
    found = infer(node, known, lambda tensor: facts.get(tensor.name, Facts()))
    for position, tensor in enumerate(node.outputs):
        item = found[position] if found is not None and position < len(found) else None
        facts[tensor.name] = _completed(tensor, item, known)


def _input_facts(tensor: gs.Tensor) -> Facts:
    shape = declared_shape(tensor)
    dtype = dtype_name(tensor.dtype)
    if shape is None or dtype is None:
        return Facts(shape, dtype)
    return Facts(shape, dtype, Element(tensor.name, tuple(axis_index(i) for i in range(len(shape))), dtype))


def declared_shape(tensor: gs.Tensor) -> tuple[Poly, ...] | None:
    """The shape written at a tensor; every dimension without a known name gets a name of its own."""
    if tensor.shape is None:
        return None
    sizes = []
    for axis, size in enumerate(tensor.shape):
        if isinstance(size, int) and size >= 0:
            sizes.append(Poly.of(size))
        else:
            sizes.append(Poly.atom(size if size in ("B", "S", "T") else f"{tensor.name}:{axis}"))
    return tuple(sizes)


def constant_of(tensor: gs.Constant) -> Facts:
    """Facts about a constant; the values of large weights are not looked at."""
    shape = tuple(int(size) for size in tensor.shape)
    dtype = dtype_name(tensor.dtype) or "float32"
    size = int(np.prod(shape, dtype=np.int64))
    integer = dtype == "bool" or dtype.startswith(("int", "uint"))
    wanted = size <= MAX_ELEMENTS or (integer and size <= MAX_PATTERN)
    return constant_facts(shape, dtype, tensor.values if wanted else None)


def _completed(tensor: gs.Tensor, found: Facts | None, known: list[Facts]) -> Facts:
    """What a rule left open is taken from the type and shape written at the tensor."""
    facts = found or Facts(constant=bool(known) and all(item.constant for item in known))
    shape = facts.shape if facts.shape is not None else declared_shape(tensor)
    dtype = facts.dtype or dtype_name(tensor.dtype)
    return Facts(shape, dtype, facts.expr if shape is not None else facts.uniform(), facts.elements, facts.constant)
