# SPDX-License-Identifier: Apache-2.0
"""Brings a graph back into an ONNX model, with one copy of its weights instead of three at a time."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, numpy_helper

_LARGE_BYTES = 1 << 16


def export_model(graph: gs.Graph) -> ModelProto:
    """The graph as a model; the graph itself stays as it is.

    Graph, model and file messages each copy what they are made of, so that large weights are put in at the end.
    """
    constants = [tensor for tensor in graph.tensors().values() if isinstance(tensor, gs.Constant)]
    held = {item.name: item._values for item in constants if item._values.nbytes >= _LARGE_BYTES}
    try:
        for item in constants:
            if item.name in held:
                item._values = np.zeros(0, np.float32)
        model: ModelProto = gs.export_onnx(graph, do_type_check=False)
    finally:
        for item in constants:
            if item.name in held:
                item._values = held[item.name]
    for tensor in model.graph.initializer:
        name, values = tensor.name, held.get(tensor.name)
        if values is not None:
            lazy = getattr(values, "tensor", None)
            tensor.CopyFrom(numpy_helper.from_array(values) if lazy is None else lazy)
            tensor.name = name
    return model
