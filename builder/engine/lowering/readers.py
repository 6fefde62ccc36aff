# SPDX-License-Identifier: Apache-2.0
"""Who reads a tensor, for steps that merge a node with the one after it."""

from __future__ import annotations

import onnx_graphsurgeon as gs
from onnx import TensorProto
from padfree.onnx_tools.analysis import dtype_name, is_output

_HALVES = ("float16", "bfloat16")


def only_reader(graph: gs.Graph, tensor: gs.Tensor, op: str) -> gs.Node | None:
    """The only reader of a tensor that is no output, if it has this operator."""
    readers = {id(node): node for node in tensor.outputs}
    if len(readers) != 1 or is_output(graph, tensor):
        return None
    (reader,) = readers.values()
    return reader if reader.op == op else None


def is_to_float(cast: gs.Node) -> bool:
    """Whether a Cast gives float32."""
    return bool(cast.attrs["to"] == TensorProto.FLOAT)


def is_half_constant(tensor: gs.Tensor) -> bool:
    """Whether a tensor is a constant in half precision."""
    return isinstance(tensor, gs.Constant) and dtype_name(tensor.dtype) in _HALVES
