# SPDX-License-Identifier: Apache-2.0
"""The vocabulary in which operators are described: tensors, attributes, and when an input is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from padfree.contract.names import PRECISIONS

AttributeValue = int | float | str
AttributeType = Literal["int", "float", "string"]
TensorType = Literal["act", "int32", "float32", "act or int32", "fp8"]

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

    `float32` stands for itself, whatever the type of the activations, and `fp8` for float8e4m3fn.
    `shape` uses the project's letters (T tokens, B sequences, S padded length, E hidden, H heads, D head size);
    `when` and `also` say for which attribute values the tensor is there at all (None: always). Absent inputs are left
    out of a node's input list, not written as empty names.
    """

    name: str
    type: TensorType
    shape: str
    when: Condition | None = None
    also: Condition | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those that hold where the tensor is there."""
        return tuple(condition for condition in (self.when, self.also) if condition is not None)

    def is_there(self, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether a node with these attributes has the tensor."""
        return all(condition.holds(attributes) for condition in self.conditions)


@dataclass(frozen=True)
class AttributeSpec:
    """One attribute. Every attribute is always written: there are no defaults.

    `allowed` lists the values (None: any value of the type between `minimum` and `maximum`).
    `selects_body` marks attributes that change which function body a node has.
    """

    name: str
    type: AttributeType
    doc: str
    allowed: tuple[AttributeValue, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    selects_body: bool = False

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

    `requires` holds pairs of conditions: where the first holds the second must hold too.
    `plugin_precisions` are the activation types for which the plugin has kernels; the body computes in all.
    """

    name: str
    doc: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: tuple[AttributeSpec, ...] = ()
    requires: tuple[tuple[Condition, Condition], ...] = ()
    plugin_precisions: tuple[str, ...] = PRECISIONS

    def attribute(self, name: str) -> AttributeSpec:
        """The attribute of that name; KeyError when there is none."""
        for spec in self.attributes:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def inputs_for(self, attributes: Mapping[str, AttributeValue]) -> tuple[TensorSpec, ...]:
        """The inputs, in order, of a node with these attributes."""
        return tuple(spec for spec in self.inputs if spec.is_there(attributes))

    def outputs_for(self, attributes: Mapping[str, AttributeValue]) -> tuple[TensorSpec, ...]:
        """The outputs, in order, of a node with these attributes."""
        return tuple(spec for spec in self.outputs if spec.is_there(attributes))

    def variant(self, attributes: Mapping[str, AttributeValue]) -> str:
        """Name of the function body that a node with these attributes has ("" for an operator with one body)."""
        chosen = [spec.name for spec in self.attributes if spec.selects_body]
        return ".".join(f"{name}_{attributes[name]}" for name in chosen)


def flag(name: str, doc: str) -> AttributeSpec:
    """An attribute that is 0 or 1 and changes the body."""
    return AttributeSpec(name, "int", doc, allowed=(0, 1), selects_body=True)


def when(attribute: str) -> Condition:
    """Where a flag is 1."""
    return Condition(attribute, (1,))


def without(attribute: str) -> Condition:
    """Where a flag is 0."""
    return Condition(attribute, (0,))
