# SPDX-License-Identifier: Apache-2.0
"""From ONNX models to graphs and back, with one copy of the weights, or none, instead of three at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, TensorProto, numpy_helper

from .model import Model, replace_items
from .weights import LARGE_BYTES, HeldValues, Weights

_NUMPY_HALVES = (np.dtype(np.float32), np.dtype(np.float16))  # numpy has no name for what other arrays may hold


def import_graph(model: Model) -> gs.Graph:
    """The model as a graph, which shares its weights."""
    graph = gs.import_onnx(model.proto)
    constants = graph.tensors()
    for tensor in model.proto.graph.initializer:
        data, constant = model.weights.held_for(tensor), constants.get(tensor.name)
        if data is not None and constant is not None:
            constant.values, constant.data_location = HeldValues(tensor, data), None
    return graph


def export_model(graph: gs.Graph, source: Model) -> Model:
    """The graph as a model; the graph itself stays as it is.

    `source` is the model that it was imported from, whose producer, metadata and version of the format it keeps. Large
    weights stay outside of messages, as each step from a graph to a file copies the one before.
    """
    constants = [tensor for tensor in graph.tensors().values() if isinstance(tensor, gs.Constant)]
    large = [(item, item._values, item._export_dtype) for item in constants if item._values.nbytes >= LARGE_BYTES]
    try:
        for item, _, _ in large:
            item._values, item._export_dtype = np.zeros(0, np.float32), None  # copied graphs have their own
        model = Model(gs.export_onnx(graph, do_type_check=False), source.weights.without_data())
    finally:
        for item, values, export_dtype in large:
            item._values, item._export_dtype = values, export_dtype
    values_by_name = {item.name: values for item, values, _ in large}
    for tensor in model.proto.graph.initializer:
        if tensor.name in values_by_name:
            _fill(tensor, values_by_name[tensor.name], model.weights)
    _keep_header(model.proto, source.proto)
    return model


def _keep_header(proto: ModelProto, source: ModelProto) -> None:
    proto.ir_version = source.ir_version
    proto.producer_name, proto.producer_version = source.producer_name, source.producer_version
    replace_items(proto.metadata_props, source.metadata_props)


def _fill(tensor: TensorProto, values: Any, weights: Weights) -> None:
    """Gives a tensor its values: an array, or lazy values of a graph."""
    name = tensor.name
    if isinstance(values, HeldValues):
        tensor.CopyFrom(values.message)
        tensor.name = name
        weights.hold(tensor, values.source)
    elif isinstance(values, np.ndarray) and values.dtype in _NUMPY_HALVES:
        weights.hold_array(tensor, values)
    else:
        lazy = getattr(values, "tensor", None)
        tensor.CopyFrom(numpy_helper.from_array(values) if lazy is None else lazy)
        tensor.name = name
