# SPDX-License-Identifier: Apache-2.0
"""Making padfree nodes, and checking those of a model against the operators' descriptions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto
from padfree.contract.names import DOMAIN

from ..errors import RewriteError
from ..files import all_nodes
from .catalog import OPERATORS
from .spec import AttributeSpec, AttributeValue, OperatorSpec

_TYPE_NAMES: Mapping[int, str] = {
    AttributeProto.INT: "int",
    AttributeProto.FLOAT: "float",
    AttributeProto.STRING: "string",
}


def make_node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], *, name: str = "", **attributes: AttributeValue
) -> NodeProto:
    """A node of the domain `padfree`, checked against the description of `op`.

    Flags that are not given are 0, and options of engines are not written; every other attribute has to be given.
    Inputs and outputs are those that the attributes ask for, in order.
    Raises RewriteError when anything does not fit the description.
    """
    node = NodeProto(op_type=op, domain=DOMAIN, name=name, input=inputs, output=outputs)
    spec = _spec_of(node)
    for key, value in {**spec.flags, **attributes}.items():
        types = {attribute.name: attribute.type for attribute in spec.attributes}
        if types.get(key) == "float" and isinstance(value, int):
            value = float(value)
        node.attribute.append(onnx.helper.make_attribute(key, value))
    check_node(node)
    return node


def set_attribute(node: NodeProto, name: str, value: AttributeValue) -> None:
    """Sets an attribute that the node has, or an option of engines. Raises ValueError for any other name."""
    existing = next((attribute for attribute in node.attribute if attribute.name == name), None)
    if existing is None and name not in _spec_of(node).outside_engines:
        raise ValueError(f"{_label(node)} has no attribute '{name}'")
    (node.attribute.add() if existing is None else existing).CopyFrom(onnx.helper.make_attribute(name, value))


def padfree_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node of the domain `padfree` in the graph and its subgraphs."""
    return (node for node in all_nodes(graph) if node.domain == DOMAIN)


def check_nodes(model: ModelProto) -> None:
    """Checks every padfree node's attributes, inputs and outputs. Raises RewriteError for the first that is wrong."""
    for node in padfree_nodes(model.graph):
        check_node(node)


def check_node(node: NodeProto) -> None:
    """Checks one node against the description of its operator. Raises RewriteError."""
    spec = _spec_of(node)
    attributes = node_attributes(node)
    for attribute in spec.attributes:
        if attribute.name not in attributes:
            raise RewriteError(
                f"{_label(node)} lacks the attribute '{attribute.name}' ({attribute.describe_allowed()}): all of "
                f"{_names(spec)} must be written; rewrite the model again with this version of padfree"
            )
        _check_value(node, attribute, attributes[attribute.name])
    for first, second in spec.requires:
        if first.holds(attributes) and not second.holds(attributes):
            raise RewriteError(
                f"{_label(node)} has {first} and {second.attribute}={attributes[second.attribute]!r}; {first} needs "
                f"{second}; rewrite the model again with this version of padfree"
            )
    _check_tensors(node, "input", list(node.input), [item.name for item in spec.inputs_for(attributes)])
    _check_outputs(node, list(node.output), [item.name for item in spec.outputs_for(attributes)])


def node_attributes(node: NodeProto) -> dict[str, AttributeValue]:
    """The attributes of a padfree node as plain values, including options of engines that it does not write.

    Raises RewriteError for an unknown name or another type.
    """
    spec = _spec_of(node)
    attributes = {attribute.name: attribute for attribute in spec.attributes}
    values: dict[str, AttributeValue] = {}
    for attribute in node.attribute:
        if attribute.name not in attributes:
            raise RewriteError(
                f"{_label(node)} has the unknown attribute '{attribute.name}'; {spec.name} knows {_names(spec)}; "
                f"remove it (TensorRT would drop it without a word)"
            )
        type_name = _TYPE_NAMES.get(attribute.type, AttributeProto.AttributeType.Name(attribute.type))
        if type_name != attributes[attribute.name].type:
            raise RewriteError(
                f"{_label(node)}: attribute '{attribute.name}' is of type {type_name}, allowed is "
                f"{attributes[attribute.name].describe_allowed()}; write it with that type"
            )
        value = onnx.helper.get_attribute_value(attribute)
        values[attribute.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return dict(spec.complete(values))


def _check_value(node: NodeProto, spec: AttributeSpec, value: AttributeValue) -> None:
    wrong = spec.allowed is not None and value not in spec.allowed
    if not isinstance(value, str):
        wrong = wrong or not math.isfinite(value)
        wrong = wrong or (spec.minimum is not None and value < spec.minimum)
        wrong = wrong or (spec.maximum is not None and value > spec.maximum)
    if wrong:
        raise RewriteError(
            f"{_label(node)}: attribute '{spec.name}' is {value!r}, allowed is {spec.describe_allowed()}; "
            f"correct the value ({spec.doc})"
        )


def _check_tensors(node: NodeProto, kind: str, names: list[str], expected: list[str]) -> None:
    if len(names) != len(expected):
        raise RewriteError(
            f"{_label(node)} has {len(names)} {kind}s, its attributes ask for {len(expected)} "
            f"({', '.join(expected)}); make the has_... attributes and the {kind}s agree"
        )
    for name, value in zip(expected, names, strict=True):
        if not value:
            raise RewriteError(
                f"{_label(node)}: {kind} '{name}' has an empty name; absent {kind}s are left out of the list and "
                f"their has_... attribute is 0"
            )


def _check_outputs(node: NodeProto, names: list[str], expected: list[str]) -> None:
    """Trailing and middle outputs that nobody uses may have empty names, but the list keeps its length."""
    if not any(names):
        raise RewriteError(f"{_label(node)} has no named output; name at least one of {', '.join(expected)}")
    _check_tensors(node, "output", [value or "unused" for value in names], expected)


def _spec_of(node: NodeProto) -> OperatorSpec:
    if node.domain != DOMAIN or node.op_type not in OPERATORS:
        raise RewriteError(
            f"{_label(node)} of domain '{node.domain}' is no padfree operator; known are {', '.join(OPERATORS)}; "
            f"update padfree or rewrite the model with this version"
        )
    return OPERATORS[node.op_type]


def _names(spec: OperatorSpec) -> str:
    return ", ".join(attribute.name for attribute in spec.attributes) or "no attribute"


def _label(node: NodeProto) -> str:
    return f"{node.op_type} '{node.name or (node.output[0] if node.output else '')}'"
