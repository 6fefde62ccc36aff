# SPDX-License-Identifier: Apache-2.0
"""Operators that TensorRT's parser does not take, written with others that it takes."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto, helper
from padfree.onnx_tools.analysis import Editor, is_standard, replace_node


def spell_for_parser(graph: gs.Graph) -> None:
    """Rewrites what TensorRT 10's parser refuses although TensorRT can compute it, in place."""
    for node in list(graph.nodes):
        if node.op in ("ScatterND", "ScatterElements") and node.attrs.get("reduction") == "none":
            del node.attrs["reduction"]  # the parser does not know it
        if is_standard(node, "EyeLike"):
            _spell_identity_matrix(graph, node)


def _spell_identity_matrix(graph: gs.Graph, node: gs.Node) -> None:
    """EyeLike becomes a comparison of rows and columns: the parser wants fixed sizes."""
    like, result, count, editor = node.inputs[0], node.outputs[0], len(graph.nodes), Editor(graph)
    new = editor.with_stem(f"{result.name}_eye")
    shape = new.op("Shape", like)

    def indices(axis: int, other: int) -> gs.Tensor:
        return new.unsqueeze(new.count_to(new.op("Gather", shape, axis)), other)

    rows = new.op("Add", indices(0, 1), new.scalar(node.attrs.get("k", 0), np.int64))
    same = new.op("Equal", rows, indices(1, 0))
    kind = node.attrs.get("dtype") or _element_type(like)
    new.op("Cast", same, to=kind, output=result)
    replace_node(graph, node, count)


def _element_type(tensor: gs.Tensor) -> int:
    """The TensorProto type of a tensor; float32 where it is not known."""
    if tensor.dtype is None or isinstance(tensor.dtype, int):
        return int(tensor.dtype or TensorProto.FLOAT)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)))
