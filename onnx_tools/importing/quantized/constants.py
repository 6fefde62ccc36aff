# SPDX-License-Identifier: Apache-2.0
"""The constant tensors of a model: weights, Constants, and these after Identity, Transpose and Cast.

torch's exporter writes weights of equal values once, with an Identity for every other name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ...analysis import STANDARD_DOMAINS
from ...files import Array, Model

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


class Constants:
    """The constants of one model, by the names of their tensors."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._initializers = {item.name: item for item in model.proto.graph.initializer}
        self._node_values = dict[str, TensorProto]()
        self._handed_on = dict[str, NodeProto]()
        for node in model.proto.graph.node:
            if node.domain in STANDARD_DOMAINS and _hands_on(node):
                self._handed_on[node.output[0]] = node
            elif (value := _value(node)) is not None:
                self._node_values[node.output[0]] = value

    def __contains__(self, name: str) -> bool:
        return self._tensor(name)[0] is not None

    def kind(self, name: str) -> int:
        """ONNX's number for a tensor's type; 0 where it is computed."""
        tensor, nodes = self._tensor(name)
        cast = next((attribute_of(node, "to") for node in nodes if node.op_type == "Cast"), None)
        return 0 if tensor is None else int(tensor.data_type if cast is None else cast)

    def count(self, name: str) -> int:
        """How many numbers a tensor has; 0 where it is computed."""
        tensor, _ = self._tensor(name)
        return 0 if tensor is None else math.prod(tensor.dims)

    def array(self, name: str) -> Array | None:
        """A tensor's values, not to be written to; None where it is computed."""
        tensor, nodes = self._tensor(name)
        if tensor is None:
            return None
        is_initializer = tensor.name in self._initializers and self._initializers[tensor.name] is tensor
        values = np.asarray(self._model.array(tensor) if is_initializer else numpy_helper.to_array(tensor))
        for node in reversed(nodes):
            values = _change(node, values)
        return values

    def _tensor(self, name: str) -> tuple[TensorProto | None, list[NodeProto]]:
        """The constant that a tensor comes from, None if it is computed, and the nodes on the way, the last first."""
        nodes = list[NodeProto]()
        while name in self._handed_on:
            nodes.append(self._handed_on[name])
            name = nodes[-1].input[0]
        return self._initializers.get(name, self._node_values.get(name)), nodes


def _hands_on(node: NodeProto) -> bool:
    return node.op_type in ("Identity", "Transpose") or (node.op_type == "Cast" and attribute_of(node, "to") in FLOATS)


def _change(node: NodeProto, values: Array) -> Array:
    """The values after such a node."""
    if node.op_type == "Cast":
        return values.astype(helper.tensor_dtype_to_np_dtype(attribute_of(node, "to")))
    return values.transpose(attribute_of(node, "perm")) if node.op_type == "Transpose" else values


def attribute_of(node: NodeProto, name: str) -> Any:
    """The value of an attribute; None where the node does not have it."""
    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), None)


def _value(node: NodeProto) -> TensorProto | None:
    """The value of a Constant node, where it is a tensor or floats; None for others."""
    if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS:
        return None
    attribute = node.attribute[0]
    if attribute.name in ("value_float", "value_floats"):
        return numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), np.float32))
    return attribute.t if attribute.name == "value" else None
