# SPDX-License-Identifier: Apache-2.0
"""Walks a graph in order and collects the facts about every tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import dtype_name
from .arguments import axes_along, axes_in_result
from .expr import Element, axis_index
from .facts import MAX_ELEMENTS, MAX_PATTERN, Facts, are_constant, constant_facts
from .poly import Poly
from .rules import infer, looks_further

_NOTHING = Facts()
_INTEGERS = frozenset({"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))})
_FLOATS = frozenset({"float16", "float32", "float64"})


@dataclass(frozen=True)
class Conclusion:
    """What was concluded about a node's outputs from what was known of its inputs."""

    node: gs.Node
    inputs: tuple[gs.Tensor, ...]
    input_facts: tuple[Facts, ...]
    results: tuple[Facts, ...]


ConstantFacts = dict[int, tuple[np.ndarray, Facts]]
"""An array's id -> the array, and what is known of constants that hold it."""


@dataclass(frozen=True)
class Analysis:
    """Facts by tensor name, the conclusions by node id that led to them, and facts about arrays that were read."""

    facts: Mapping[str, Facts]
    steps: Mapping[int, Conclusion] = field(default_factory=dict)
    constants: ConstantFacts = field(default_factory=dict)

    def __getitem__(self, tensor: gs.Tensor) -> Facts:
        return self.facts.get(tensor.name, _NOTHING)

    def axes_along(self, node: gs.Node) -> list[int] | None:
        """See arguments.axes_along."""
        return axes_along(node, [self[tensor] for tensor in node.inputs])

    def axes_in_result(self, node: gs.Node) -> tuple[int | None, ...]:
        """See arguments.axes_in_result; those of the first output."""
        return axes_in_result(node, [self[tensor] for tensor in node.inputs], self[node.outputs[0]])

    def of_copy(self, graph: gs.Graph, copy: gs.Graph) -> Analysis:
        """The same analysis for a copy of the graph, whose nodes have the same order."""
        steps = dict[int, Conclusion]()
        for old, new in zip(graph.nodes, copy.nodes, strict=True):
            step = self.steps.get(id(old))
            if step is not None:
                steps[id(new)] = Conclusion(new, tuple(new.inputs), step.input_facts, step.results)
        return Analysis(self.facts, steps, self.constants)


def analyse(graph: gs.Graph, before: Analysis | None = None) -> Analysis:
    """Facts about every tensor of a sorted graph, from its inputs (dimensions named B, S, T) onward.

    What was known of the same graph `before` a change is taken over wherever nothing that it follows from has changed;
    the attributes of nodes are assumed not to change.
    """
    facts, steps = facts_of_inputs(graph), dict[int, Conclusion]()
    old = before if before is not None else Analysis({})
    constants = dict(old.constants)
    for name, item in facts.items():
        facts[name] = _as_before(old, name, item)
    for node in graph.nodes:
        last_step = old.steps.get(id(node))
        if last_step is not None and last_step.node is node and _taken_over(facts, node, last_step):
            steps[id(node)] = last_step
            continue
        learn(facts, node, constants)
        for tensor in node.outputs:
            facts[tensor.name] = _as_before(old, tensor.name, facts[tensor.name])
        outputs = tuple(facts[tensor.name] for tensor in node.outputs)
        if all(item.shape is not None and item.dtype is not None for item in outputs) and not looks_further(node):
            input_facts = tuple(facts.get(tensor.name, _NOTHING) for tensor in node.inputs)
            steps[id(node)] = Conclusion(node, tuple(node.inputs), input_facts, outputs)
    return Analysis(facts, steps, constants)


def _as_before(old: Analysis, name: str, item: Facts) -> Facts:
    """The old facts of that tensor if they say the same as `item`: conclusions from the same object still hold."""
    last = old.facts.get(name)
    return last if last is not None and last.says_the_same(item) else item


def _taken_over(facts: dict[str, Facts], node: gs.Node, step: Conclusion) -> bool:
    """Takes over what a step found if it would find the same again; returns whether it did."""
    inputs, outputs = node.inputs, node.outputs
    if len(inputs) != len(step.inputs) or len(outputs) != len(step.results):
        return False
    for tensor, before, last in zip(inputs, step.inputs, step.input_facts, strict=True):
        if not isinstance(tensor, gs.Constant):
            if facts.get(tensor.name, _NOTHING) is not last:
                return False
        elif tensor is not before:
            return False
        else:
            facts[tensor.name] = last
    for tensor, item in zip(outputs, step.results, strict=True):
        facts[tensor.name] = item
    return True


def facts_of_inputs(graph: gs.Graph) -> dict[str, Facts]:
    """What is known before the first node: for a walk that changes the graph on its way."""
    return {tensor.name: _input_facts(tensor) for tensor in graph.inputs}


def learn(facts: dict[str, Facts], node: gs.Node, constants: ConstantFacts | None = None) -> None:
    """Adds the facts about a node's constants and outputs; those about its other inputs must be there.

    `constants` holds what is already known of arrays; those that are read here are added.
    """
    for tensor in node.inputs:
        if isinstance(tensor, gs.Constant) and tensor.name not in facts:
            facts[tensor.name] = constant_of(tensor, constants)
    input_facts = [facts.get(tensor.name, _NOTHING) for tensor in node.inputs]
    results = infer(node, input_facts, lambda tensor: facts.get(tensor.name, _NOTHING))
    for position, tensor in enumerate(node.outputs):
        item = results[position] if results is not None and position < len(results) else None
        item = Facts(constant=True) if node.op == "Constant" else item  # strings; other Constant nodes are gone by now
        facts[tensor.name] = _complete(tensor, item, input_facts)


def _input_facts(tensor: gs.Tensor) -> Facts:
    shape = declared_shape(tensor)
    dtype = dtype_name(tensor.dtype)
    if shape is None or dtype is None:
        return Facts(shape, dtype)
    if len(shape) < 2 and all(size.constant() is not None for size in shape):
        return Facts(shape, dtype, constant=True)  # the same for every sequence, like a weight
    return Facts(shape, dtype, Element(tensor.name, tuple(axis_index(i) for i in range(len(shape))), dtype))


def declared_shape(tensor: gs.Tensor) -> tuple[Poly, ...] | None:
    """The shape that a tensor declares; every dimension without a known name gets a name of its own."""
    if tensor.shape is None:
        return None
    sizes = []
    for axis, size in enumerate(tensor.shape):
        if isinstance(size, int) and size >= 0:
            sizes.append(Poly.of(size))
        else:
            sizes.append(Poly.atom(size if size in ("B", "S", "T") else f"{tensor.name}:{axis}"))
    return tuple(sizes)


def constant_of(tensor: gs.Constant, constants: ConstantFacts | None = None) -> Facts:
    """Facts about a constant; values of large weights are not read, nor are those that numpy has no type for.

    Reading such values (bfloat16, int4) would convert them for good, in the exported graph too.
    """
    dtype = dtype_name(tensor.dtype) or "float32"
    shape = tuple(int(size) for size in tensor.shape)
    size = math.prod(shape)
    integer = dtype in _INTEGERS
    if not (integer or dtype in _FLOATS) or size > (MAX_PATTERN if integer else MAX_ELEMENTS):
        return constant_facts(shape, dtype, None)
    values = tensor.values
    seen = None if constants is None else constants.get(id(values))
    if seen is not None:
        return seen[1]
    facts = constant_facts(shape, dtype, values)
    if constants is not None:
        constants[id(values)] = (values, facts)
    return facts


def _complete(tensor: gs.Tensor, result: Facts | None, input_facts: list[Facts]) -> Facts:
    """Takes what a rule left open from the type and shape that the tensor declares."""
    facts = result or Facts(constant=bool(input_facts) and are_constant(input_facts))
    shape = facts.shape if facts.shape is not None else declared_shape(tensor)
    dtype = facts.dtype or dtype_name(tensor.dtype)
    return Facts(shape, dtype, facts.expr if shape is not None else facts.uniform(), facts.elements, facts.constant)
