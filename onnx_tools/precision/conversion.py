# SPDX-License-Identifier: Apache-2.0
"""Rewrites the nodes of a graph for the types that they compute in, with every cast between them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..operators import DOMAIN, OPERATORS, node_attributes, opset_of
from ..operators.functions import ACT_TYPES
from .constants import HalfConstants
from .element_types import infer_element_types
from .output_casts import cast_output
from .rounded_weights import round_to, to_float32
from .type_choice import TypeChoice

_FLOAT = TensorProto.FLOAT


class Conversion:
    """Rewrites one model's graph in place.

    Args:
        model: a float32 model without function bodies.
        constants: its constants, which are put in at the end.
        precision: the new type, "fp16" or "bf16".
        unfit: tensors that the new type cannot hold, with the reasons.
    """

    def __init__(self, model: ModelProto, constants: HalfConstants, precision: str, unfit: Mapping[str, str]) -> None:
        self._graph, self._constants, self._precision = model.graph, constants, precision
        self._act = ACT_TYPES[precision]
        self._types = infer_element_types(model, "fp32")
        self._choice = TypeChoice(precision, opset_of(model), constants, self._types, unfit)
        self._nodes: list[NodeProto] = []
        self._casts: set[str] = set()
        self._outputs = {item.name: item.type.tensor_type.elem_type for item in self._graph.output}

    def run(self) -> None:
        """Rewrites all nodes."""
        for node in list(self._graph.node):
            if node.op_type == "Constant" and node.domain == "" and self._types[node.output[0]] == _FLOAT:
                self._lift_constant(node)
            else:
                self._convert(node)
        self._finish_outputs()
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        self._constants.store()
        for item in list(self._graph.value_info):
            if item.name in self._types:
                item.type.tensor_type.elem_type = self._types[item.name]

    def _lift_constant(self, node: NodeProto) -> None:
        """A Constant node of floats becomes an initializer, which is converted like all others."""
        value = helper.get_attribute_value(node.attribute[0])
        tensor = TensorProto()
        if isinstance(value, TensorProto):
            tensor.CopyFrom(value)
        else:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(value, np.float32)))
        tensor.name = node.output[0]
        if tensor.name in self._outputs:
            self._nodes.append(node)
        else:
            self._constants.add(tensor)

    def _convert(self, node: NodeProto) -> None:
        floats = [name for name in node.input if name and self._is_float(name)]
        makes_float = any(name and self._types[name] == _FLOAT for name in node.output)
        if not floats and not makes_float:
            self._nodes.append(node)
            return
        target = self._choice.of(node, floats)
        self._choice.follow_counts(node, floats, target)
        if node.op_type == "Cast" and node.domain == "":
            self._convert_cast(node, target)
        else:
            self._convert_operands(node, target)
        for name in node.output:
            if name and self._types[name] == _FLOAT:
                self._types[name] = target
        self._nodes.append(node)

    def _convert_cast(self, node: NodeProto, target: int) -> None:
        """Changes the type that a cast makes; what it reads keeps its type."""
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == _FLOAT:
                attribute.i = target
        if node.input[0] in self._constants:
            self._constants.keep(node.input[0])

    def _convert_operands(self, node: NodeProto, target: int) -> None:
        """Lets a node read and make floats of one type, except for inputs that are float32 by their description."""
        in_float32 = _float32_inputs(node)
        for position, name in enumerate(node.input):
            if name and self._is_float(name):
                node.input[position] = self._as_type(name, _FLOAT if position in in_float32 else target, node)
        for attribute in node.attribute:
            if attribute.name == "dtype" and attribute.i == _FLOAT:
                attribute.i = target
            if attribute.name == "value" and attribute.t.data_type == _FLOAT and target != _FLOAT:
                attribute.t.CopyFrom(round_to(to_float32(attribute.t), self._precision))

    def _is_float(self, name: str) -> bool:
        return name in self._constants or self._types[name] in (_FLOAT, self._act)

    def _as_type(self, name: str, target: int, reader: NodeProto) -> str:
        """The name under which a tensor can be read as `target`, after a Cast where needed."""
        if name in self._constants:
            if target != _FLOAT:
                return self._constants.rounded_name(name, reader)
            self._constants.keep(name)
            return name
        if self._types[name] == target:
            return name
        cast = f"{name}.to_{TensorProto.DataType.Name(target).lower()}"
        if cast not in self._casts:
            self._casts.add(cast)
            self._nodes.append(helper.make_node("Cast", [name], [cast], name=cast, to=target))
            self._types[cast] = target
        return cast

    def _finish_outputs(self) -> None:
        """Outputs keep their type: a cast makes them, under their names, from tensors in the new type."""
        for name, element_type in self._outputs.items():
            if element_type != _FLOAT or self._types[name] == _FLOAT:
                continue
            inner, cast = f"{name}.{self._precision}", f"{name}.to_float"
            node_name = f"{name}.output" if cast in self._casts else cast  # one made for readers of the output
            cast_output(self._nodes, name, inner, node_name, _FLOAT)
            self._types[inner] = self._types[name]
            self._types[name] = _FLOAT


def _float32_inputs(node: NodeProto) -> set[int]:
    """Positions of a padfree node's inputs that are float32 whatever the activations' type."""
    if node.domain != DOMAIN:
        return set()
    specs = OPERATORS[node.op_type].inputs_for(node_attributes(node))
    return {position for position, spec in enumerate(specs) if spec.type == "float32"}
