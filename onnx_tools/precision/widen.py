# SPDX-License-Identifier: Apache-2.0
"""Widens files of other float types to float32, the one that passes and verification know; outputs get theirs back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..analysis import Editor, dtype_name
from ..files import Model, Weights, all_nodes, array_of, copy_message, model_tensors, node_tensors
from .blocks import on_all_cores
from .halves import to_float

HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
# Exporters write out norms of half precision models in double.
_WIDE_TYPES = HALVES | {TensorProto.DOUBLE}
_FLOAT = TensorProto.FLOAT
_TYPE_ATTRIBUTES = ("to", "dtype")


def widen(model: Model) -> Model:
    """The model with float32 instead of float16, bfloat16 and double; itself where it computes in none of them.

    Weights in the message stay there.
    """
    proto = model.proto
    names_half = _names_half(all_nodes(proto.graph, *proto.functions))
    halves = names_half or any(tensor.data_type in HALVES for tensor in model_tensors(proto.graph))
    in_double = any(_is_wide_weight(tensor) for tensor in proto.graph.initializer) or _weighs_in_double(proto)
    if not halves and not in_double:
        return model
    result, weights = copy_message(proto), model.weights.copy()
    in_functions = node_tensors(node for function in result.functions for node in function.node)
    tensors = [item for item in (*model_tensors(result.graph), *in_functions) if item.data_type in _WIDE_TYPES]
    for tensor, values in zip(tensors, on_all_cores(partial(_wide, weights), tensors), strict=True):
        _set(tensor, values, weights)
    _widen_nodes(all_nodes(result.graph, *result.functions))
    del result.graph.value_info[:]
    for value in (*result.graph.input, *result.graph.output):
        if value.type.tensor_type.elem_type in _WIDE_TYPES:
            value.type.tensor_type.elem_type = _FLOAT
    return Model(result, weights)


def narrow_outputs(graph: gs.Graph, original: ModelProto) -> bool:
    """Gives a graph's outputs, in place, the float types that they have in the original; whether any has another."""
    types = {item.name: item.type.tensor_type.elem_type for item in original.graph.output}
    changed = [
        (position, tensor, kind)
        for position, tensor in enumerate(graph.outputs)
        if (kind := types.get(tensor.name)) in _WIDE_TYPES and dtype_name(tensor.dtype) != dtype_name(kind)
    ]
    editor = Editor(graph)
    for position, wide, kind in changed:
        dtype = kind if kind == TensorProto.BFLOAT16 else helper.tensor_dtype_to_np_dtype(kind)  # numpy has no bfloat16
        output = gs.Variable(wide.name, dtype, wide.shape)
        wide.name = editor.fresh(f"{wide.name}_wide")
        graph.outputs[position] = editor.op("Cast", wide, stem=wide.name, to=kind, output=output)
    return bool(changed)


def _is_wide_weight(tensor: TensorProto) -> bool:
    """Whether the tensor shows that a model computes in double: single numbers and vectors do not."""
    return tensor.data_type == TensorProto.DOUBLE and len(tensor.dims) > 1


def _weighs_in_double(proto: ModelProto) -> bool:
    """Whether a Softmax reads scores that were cast to double, which no operator of padfree, and no engine, knows."""
    nodes = list(all_nodes(proto.graph, *proto.functions))
    doubles = {
        node.output[0]
        for node in nodes
        if node.op_type == "Cast" and any(item.name == "to" and item.i == TensorProto.DOUBLE for item in node.attribute)
    }
    return bool(doubles) and any(node.op_type == "Softmax" and node.input[0] in doubles for node in nodes)


def _names_half(nodes: Iterable[NodeProto]) -> bool:
    return any(item.name in _TYPE_ATTRIBUTES and item.i in HALVES for node in nodes for item in node.attribute)


def _widen_nodes(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _WIDE_TYPES:
                attribute.i = _FLOAT


def _wide(weights: Weights, tensor: TensorProto) -> npt.NDArray[np.float32]:
    return to_float(array_of(tensor, weights.data_of(tensor)))


def _set(tensor: TensorProto, values: npt.NDArray[np.float32], weights: Weights) -> None:
    if weights.data_of(tensor) is None:
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    else:
        weights.hold_array(tensor, values)
