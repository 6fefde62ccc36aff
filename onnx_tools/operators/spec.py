# SPDX-License-Identifier: Apache-2.0
"""The vocabulary in which operators are described: tensors, attributes, and when a tensor is present."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from padfree.contract.names import PRECISIONS

AttributeValue = int | float | str
AttributeType = Literal["int", "float", "string"]
TensorType = Literal["act", "int32", "float32", "act or int32", "fp8", "int8"]

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Condition:
    """Holds when `attribute` has one of `values` or, without any, is a positive number."""

    attribute: str
    values: tuple[AttributeValue, ...] = ()

    def holds(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether a node with these attributes meets the condition."""
        value = attributes[self.attribute]
        return value in self.values if self.values else not isinstance(value, str) and value > 0

    def __str__(self) -> str:
        if not self.values:
            return f"{self.attribute}>0"
        return f"{self.attribute}={' or '.join(repr(value) for value in self.values)}"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. `act` is the activation type of the graph: float32, float16 or bfloat16.

    `float32` stands for itself, whatever the type of the activations, `fp8` for float8e4m3fn, and
    `int8` for itself.
    `shape` uses the project's letters (T tokens, B sequences, S padded length, E hidden, H heads, D head size), each
    the same size in all tensors of a node; "..." stands for the same axes everywhere, "*" for any.
    `when` and `also` say for which attribute values the tensor is present (None: always). Absent inputs are left
    out of a node's input list, not written as empty names.
    """

    name: str
    type: TensorType
    shape: str
    when: Condition | None = None
    also: Condition | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that must hold for the tensor to be present."""
        return tuple(condition for condition in (self.when, self.also) if condition is not None)

    @functools.cached_property
    def axes(self) -> tuple[str, ...]:
        """The sizes in the shape as they are written, one for each axis."""
        return tuple(axis for axis in self.shape.strip("[]").split(",") if axis)

    def sizes(self, letters: Mapping[str, int]) -> tuple[int, ...]:
        """The shape, with numbers for what is written: sums of products of letters and numbers, each over a number."""
        return tuple(sum(_product(term, letters) for term in axis.split("+")) for axis in self.axes)

    def is_there(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether a node with these attributes has the tensor."""
        return all(condition.holds(attributes) for condition in self.conditions)


def _product(term: str, letters: Mapping[str, int]) -> int:
    product, _, divisor = term.partition("/")
    factors = (int(factor) if factor.isdigit() else letters[factor] for factor in product.split("*"))
    return math.prod(factors) // int(divisor or 1)


@dataclass(frozen=True)
class PluginRange:
    """The integers that a plugin takes; None: whatever the description allows."""

    minimum: int | None = None
    maximum: int | None = None
    multiple_of: int = 1


@dataclass(frozen=True)
class AttributeSpec:
    """One attribute. Files hold every attribute except the options of engines; engines hold all.

    `allowed` lists the values (None: any value of the type between `minimum` and `maximum`).
    `selects_body` marks attributes that change which function body a node has.
    `outside_engines` marks an option that only engines have: it is the value of a node without it. The option is chosen
    while a network is lowered (builder/engine), and no pass names it.
    `is_later` marks an attribute that came later: nodes have it, in files and in engines, only where it differs from
    `outside_engines`, so that earlier files and plans mean what they did.
    `letter` stands for its value in shapes. `plugin` says which of the numbers that a file may have the plugin takes.
    """

    name: str
    type: AttributeType
    doc: str
    allowed: tuple[AttributeValue, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    selects_body: bool = False
    outside_engines: AttributeValue | None = None
    is_later: bool = False
    letter: str = ""
    plugin: PluginRange | None = None

    def describe_allowed(self) -> str:
        """The allowed values in words, for error messages."""
        if self.allowed is not None:
            return f"{self.type}, one of {', '.join(repr(value) for value in self.allowed)}"
        if self.minimum is None and self.maximum is None:
            return f"any {self.type}"
        if self.maximum is None:
            return f"{self.type} of at least {self.minimum}"
        return f"{self.type} from {self.minimum} to {self.maximum}"


@dataclass(frozen=True)
class OperatorSpec:
    """One operator of the ONNX domain `padfree`, which is also one TensorRT plugin of the same name.

    `requires` holds pairs of conditions: where the first holds, the second must hold too.
    `plugin_precisions` are the activation types for which the plugin has kernels; the body computes in all. The plugin
    has none for fp32 where one of the conditions `in_half` holds.
    `measurement` names what the plugin measures while an engine is built: a field of plans that no node has.
    """

    name: str
    doc: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: tuple[AttributeSpec, ...] = ()
    requires: tuple[tuple[Condition, Condition], ...] = ()
    plugin_precisions: tuple[str, ...] = PRECISIONS
    in_half: tuple[Condition, ...] = ()
    measurement: str = ""

    def attribute(self, name: str) -> AttributeSpec:
        """The attribute of that name; KeyError when there is none."""
        for spec in self.attributes:
            if spec.name == name:
                return spec
        raise KeyError(name)

    @functools.cached_property
    def outside_engines(self) -> Mapping[str, AttributeValue]:
        """The options that only engines have, with the values of a node without them."""
        return {spec.name: spec.outside_engines for spec in self.attributes if spec.outside_engines is not None}

    @functools.cached_property
    def engine_options(self) -> Mapping[str, AttributeValue]:
        """The `outside_engines` attributes that every node of an engine has."""
        later_names = {spec.name for spec in self.attributes if spec.is_later}
        return {name: value for name, value in self.outside_engines.items() if name not in later_names}

    @functools.cached_property
    def flags(self) -> Mapping[str, AttributeValue]:
        """The flags that files hold, each set to 0."""
        return {spec.name: 0 for spec in self.attributes if spec.allowed == (0, 1) and spec.outside_engines is None}

    def complete(self, attributes: Mapping[str, AttributeValue]) -> Mapping[str, AttributeValue]:
        """A node's attributes, completed by the options of engines that it does not write."""
        return {**self.outside_engines, **attributes}

    def inputs_for(self, attributes: Mapping[str, AttributeValue]) -> tuple[TensorSpec, ...]:
        """The inputs, in order, of a node with these attributes."""
        completed = self.complete(attributes)
        return tuple(spec for spec in self.inputs if spec.is_there(completed))

    def outputs_for(self, attributes: Mapping[str, AttributeValue]) -> tuple[TensorSpec, ...]:
        """The outputs, in order, of a node with these attributes."""
        completed = self.complete(attributes)
        return tuple(spec for spec in self.outputs if spec.is_there(completed))

    def variant(self, attributes: Mapping[str, AttributeValue]) -> str:
        """Name of the function body that a node with these attributes has ("" for an operator with one body)."""
        completed = self.complete(attributes)
        names = [
            spec.name
            for spec in self.attributes
            if spec.selects_body and not (spec.is_later and completed[spec.name] == spec.outside_engines)
        ]
        return ".".join(f"{name}_{completed[name]}" for name in names)


def flag(name: str, doc: str) -> AttributeSpec:
    """An attribute that is 0 or 1 and changes the body."""
    return AttributeSpec(name, "int", doc, allowed=(0, 1), selects_body=True)


def integer(name: str, doc: str, minimum: int, *, letter: str = "", plugin: PluginRange | None = None) -> AttributeSpec:
    """An integer attribute that does not select the body, which reads its value."""
    return AttributeSpec(name, "int", doc, minimum=minimum, maximum=INT32_MAX, letter=letter, plugin=plugin)


def in_engines(attribute: AttributeSpec, outside: AttributeValue = 0) -> AttributeSpec:
    """The attribute as an option that only engines have; `outside` is the value of a node without it."""
    return replace(attribute, outside_engines=outside)


def later(attribute: AttributeSpec) -> AttributeSpec:
    """The attribute as one that came later; nodes without it mean 0."""
    return replace(attribute, outside_engines=0, is_later=True)


def when(attribute: str) -> Condition:
    """The condition that a flag is 1."""
    return Condition(attribute, (1,))


def without(attribute: str) -> Condition:
    """The condition that a flag is 0."""
    return Condition(attribute, (0,))
