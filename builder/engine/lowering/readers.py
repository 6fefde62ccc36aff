# SPDX-License-Identifier: Apache-2.0
"""Who reads a tensor of a message, for passes that merge a node with the one after it."""

from __future__ import annotations

import onnx
from onnx import TensorProto

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def only_reader(graph: onnx.GraphProto, tensor: str, op: str) -> onnx.NodeProto | None:
    """The only reader of a tensor that is no output, if it has this operator."""
    readers = [node for node in graph.node if tensor in node.input]
    is_output = any(value.name == tensor for value in graph.output)
    return readers[0] if len(readers) == 1 and readers[0].op_type == op and not is_output else None


def is_to_float(cast: onnx.NodeProto) -> bool:
    """Whether a Cast gives float32."""
    return bool(onnx.helper.get_node_attr_value(cast, "to") == TensorProto.FLOAT)
