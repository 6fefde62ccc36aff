# SPDX-License-Identifier: Apache-2.0
"""Rewrites the nodes of a graph for the types that they compute in, with every cast between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto
from onnx_graphsurgeon.ir.tensor import LazyValues

from ..analysis import dtype_name, is_output, is_standard, once, opset, remove_nodes
from ..operators import ACT_TYPES, DOMAIN, OPERATORS
from .constants import HalfConstants, float_values
from .rounded_weights import round_to
from .type_choice import TypeChoice

_FLOAT = TensorProto.FLOAT


class Conversion:
    """Rewrites one graph in place.

    Args:
        graph: of a float32 model.
        types: the TensorProto types of its tensors, by name.
        constants: its constants.
        precision: the new type, "fp16" or "bf16".
        unfit: tensors that the new type cannot hold, with the reasons.
    """

    def __init__(
        self,
        graph: gs.Graph,
        types: Mapping[str, int],
        constants: HalfConstants,
        precision: str,
        unfit: Mapping[str, str],
    ) -> None:
        self._graph, self._constants, self._precision = graph, constants, precision
        self._act = ACT_TYPES[precision]
        self._types = dict(types)
        self._choice = TypeChoice(precision, opset(graph), constants, self._types, unfit)
        self._nodes: list[gs.Node] = []
        self._casts: dict[str, gs.Tensor] = {}

    def run(self) -> None:
        """Rewrites all nodes."""
        for node in list(self._graph.nodes):
            if is_standard(node, "Constant") and self._is_lifted(node.outputs[0]):
                self._lift_constant(node)
            else:
                self._convert(node)
        self._finish_outputs()
        self._graph.nodes = self._nodes
        self._constants.name_rounded()
        kind: Any = np.dtype(np.float16) if self._precision == "fp16" else self._act  # numpy has no bfloat16
        for tensor in [tensor for node in self._nodes for tensor in node.outputs]:
            if tensor.dtype is not None and self._types.get(tensor.name) == self._act:
                tensor.dtype = kind

    def _is_lifted(self, tensor: gs.Tensor) -> bool:
        return self._types[tensor.name] == _FLOAT and not is_output(self._graph, tensor)

    def _lift_constant(self, node: gs.Node) -> None:
        """A Constant node of floats becomes a constant, which is converted like all others."""
        tensor, (value,) = node.outputs[0], node.attrs.values()
        remove_nodes(self._graph, [node])
        values = value.values if isinstance(value, gs.Constant) else value
        tensor.to_constant(np.asarray(values, np.float32))
        self._constants.add(tensor)

    def _convert(self, node: gs.Node) -> None:
        floats = [tensor.name for tensor in node.inputs if tensor.name and self._is_float(tensor.name)]
        makes_float = any(tensor.name and self._types[tensor.name] == _FLOAT for tensor in node.outputs)
        if not floats and not makes_float:
            self._nodes.append(node)
            return
        target = self._choice.of(node, floats)
        self._choice.follow_counts(node, floats, target)
        if is_standard(node, "Cast"):
            self._convert_cast(node, target)
        else:
            self._convert_operands(node, target)
        for tensor in node.outputs:
            if tensor.name and self._types[tensor.name] == _FLOAT:
                self._types[tensor.name] = target
        self._nodes.append(node)

    def _convert_cast(self, node: gs.Node, target: int) -> None:
        """Changes the type that a cast makes; what it reads keeps its type."""
        if node.attrs["to"] == _FLOAT:
            node.attrs["to"] = target
        if node.inputs[0].name in self._constants:
            self._constants.keep(node.inputs[0].name)

    def _convert_operands(self, node: gs.Node, target: int) -> None:
        """Lets a node read and make floats of one type, except for inputs that are float32 by their description."""
        in_float32 = _float32_inputs(node)
        for position, tensor in enumerate(list(node.inputs)):
            if tensor.name and self._is_float(tensor.name):
                operand = self._as_type(tensor, _FLOAT if position in in_float32 else target, node)
                if operand is not tensor:
                    node.inputs[position] = operand
        if node.attrs.get("dtype") == _FLOAT:
            node.attrs["dtype"] = target
        value = node.attrs.get("value")
        if isinstance(value, gs.Constant) and dtype_name(value.dtype) == "float32" and target != _FLOAT:
            node.attrs["value"] = gs.Constant(value.name, LazyValues(round_to(float_values(value), self._precision)))

    def _is_float(self, name: str) -> bool:
        return name in self._constants or self._types[name] in (_FLOAT, self._act)

    def _as_type(self, tensor: gs.Tensor, target: int, reader: gs.Node) -> gs.Tensor:
        """The tensor as `target`, after a Cast where needed."""
        name = tensor.name
        if name in self._constants:
            if target != _FLOAT:
                return self._constants.in_half(name, reader)
            self._constants.keep(name)
            return tensor
        if self._types[name] == target:
            return tensor
        cast = f"{name}.to_{TensorProto.DataType.Name(target).lower()}"
        return once(self._casts, cast, lambda: self._cast(tensor, gs.Variable(cast), cast, target))

    def _cast(self, tensor: gs.Tensor, result: gs.Tensor, name: str, target: int) -> gs.Tensor:
        """Adds a Cast; returns its result."""
        self._nodes.append(gs.Node("Cast", name, {"to": target}, [tensor], [result]))
        self._types[result.name] = target
        return result

    def _finish_outputs(self) -> None:
        """Outputs keep their type: a cast makes them, under their names, from tensors in the new type."""
        for index, tensor in enumerate(self._graph.outputs):
            name = tensor.name
            if dtype_name(tensor.dtype) != "float32" or self._types[name] == _FLOAT:
                continue
            cast = f"{name}.to_float"
            node_name = f"{name}.output" if cast in self._casts else cast  # one made for readers of the output
            tensor.name = f"{name}.{self._precision}"
            self._types[tensor.name] = self._types[name]
            output = gs.Variable(name, dtype=tensor.dtype, shape=tensor.shape)
            self._graph.outputs[index] = self._cast(tensor, output, node_name, _FLOAT)


def _float32_inputs(node: gs.Node) -> set[int]:
    """Positions of a padfree node's inputs that are float32 whatever the activations' type."""
    if node.domain != DOMAIN:
        return set()
    return {
        position for position, spec in enumerate(OPERATORS[node.op].inputs_for(node.attrs)) if spec.type == "float32"
    }
