# SPDX-License-Identifier: Apache-2.0
"""A model without its weights, for tools that only look at types and shapes; and names that nothing else has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
from onnx import GraphProto, ModelProto, TensorProto

from ..files import all_graphs, all_nodes, copy_message
from .fused import declare_fused

_SMALL = 1024  # elements; constants up to this may hold shapes, which the inference of types needs
_MOST_PROPAGATED = 1 << 16  # values, far more than any shape has

Types = dict[str, onnx.TypeProto.Tensor]


def skeleton_of(model: ModelProto, sizes: Mapping[str, Sequence[int | str]] | None = None) -> ModelProto:
    """The model without its large weights, of which only type and shape are left.

    `sizes` are shapes of inputs that replace the declared ones. Outputs have only their types.
    """
    skeleton = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    skeleton.graph.name = "skeleton"
    skeleton.graph.node.extend(model.graph.node)
    initializers = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if sizes is not None and value.name in sizes:
            kind = value.type.tensor_type.elem_type
            skeleton.graph.input.append(onnx.helper.make_tensor_value_info(value.name, kind, list(sizes[value.name])))
        elif value.name not in initializers:
            skeleton.graph.input.append(value)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
            skeleton.graph.initializer.append(tensor)
        else:
            item = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            skeleton.graph.input.append(item)
    for value in model.graph.output:
        item = onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, [])
        skeleton.graph.output.append(item)
    declare_fused(skeleton)
    return skeleton


def infer(skeleton: ModelProto) -> Types:
    """Types and shapes of the tensors that nodes make. Raises onnx.shape_inference.InferenceError."""
    whole = copy_message(skeleton)
    for value in whole.graph.output:
        value.type.tensor_type.ClearField("shape")  # the checker needs one, but only the inferred one counts
    _hide_limits(whole.graph)
    data_prop = _most_propagated(whole.graph) <= _MOST_PROPAGATED
    graph = onnx.shape_inference.infer_shapes(whole, strict_mode=False, data_prop=data_prop).graph
    return {value.name: value.type.tensor_type for value in [*graph.value_info, *graph.output]}


def _hide_limits(graph: GraphProto) -> None:
    """Hides values from the limits of Range: the inference would write down all numbers up to it, perhaps 2^40."""
    nodes = list(graph.node)
    del graph.node[:]
    for count, node in enumerate(nodes):
        if node.op_type == "Range" and len(node.input) > 1:
            hidden = f"{node.input[1]}, limit of Range {count}"
            graph.node.append(onnx.helper.make_node("Abs", [node.input[1]], [hidden]))  # it propagates no values
            node.input[1] = hidden
        graph.node.append(node)


def _most_propagated(graph: GraphProto) -> int:
    """The most values that the inference would follow through one tensor: each Concat of a chain can double them."""
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        counts = [sizes.get(name, 1) for name in node.input]
        if node.op_type == "Constant":
            counts = [math.prod(attribute.t.dims) for attribute in node.attribute if attribute.HasField("t")]
        size = sum(counts) if node.op_type == "Concat" else max(counts, default=1)
        sizes.update(dict.fromkeys(node.output, size))
    return max(sizes.values(), default=0)


class Names:
    """The names of a model's tensors and nodes, those of subgraphs included, and new ones."""

    def __init__(self, graph: GraphProto) -> None:
        self._names_in_use = {name for node in all_nodes(graph) for name in (node.name, *node.input, *node.output)}
        self._count = 0
        for part in all_graphs(graph):
            for values in (part.input, part.output, part.initializer):
                self._names_in_use.update(item.name for item in values)
            self._names_in_use.update(item.values.name for item in part.sparse_initializer)

    def fresh(self, stem: str) -> str:
        """A name that nothing has: `stem`, or `stem` and a number."""
        name = stem
        while name in self._names_in_use or not name:
            self._count += 1
            name = f"{stem}_{self._count}"
        self._names_in_use.add(name)
        return name
