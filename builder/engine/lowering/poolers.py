# SPDX-License-Identifier: Apache-2.0
"""Poolers that a norm makes beside its rows.

After the last norm, a pooler multiplies the rows of first tokens by its weights. As kernels of its own it begins when
the norm has ended, and takes as long.
"""

from __future__ import annotations

import onnx
from padfree.onnx_tools.operators import node_attributes, padfree_nodes, set_attribute

from .readers import is_to_float, only_reader

_MULTIPLE = 8
"""The width of rows that a norm multiplies by a pooler's weights is a multiple of this."""
_POOLER = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
"""Attributes of a Gemm that is x weight^T + bias."""


def merge_poolers(model: onnx.ModelProto) -> None:
    """Lets a norm compute tanh(y_first weight^T + bias) in float32 where nothing else reads its y_first, in place.

    A norm that adds something to x is left alone.
    """
    for norm in [node for node in padfree_nodes(model.graph) if node.op_type == "PadfreeLayerNorm"]:
        attributes = node_attributes(norm)
        if attributes["has_first"] and not attributes["has_bias"] and not attributes["has_residual"]:
            _merge(model.graph, norm)


def _merge(graph: onnx.GraphProto, norm: onnx.NodeProto) -> None:
    constants = {tensor.name for tensor in graph.initializer}
    if not set(norm.input[1:-1]) <= constants:  # all but x and cu_seqlens: the kernel reads them early
        return
    gemm = only_reader(graph, norm.output[-1], "Gemm")
    tanh = only_reader(graph, gemm.output[0], "Tanh") if gemm is not None else None
    cast = only_reader(graph, tanh.output[0], "Cast") if tanh is not None else None
    if gemm is None or tanh is None or cast is None or not _is_pooler(graph, gemm) or not is_to_float(cast):
        return
    norm.input.extend(gemm.input[1:])
    norm.output[-1] = cast.output[0]
    set_attribute(norm, "has_pooler", 1)
    for node in (gemm, tanh, cast):
        graph.node.remove(node)


def _is_pooler(graph: onnx.GraphProto, gemm: onnx.NodeProto) -> bool:
    """Whether a Gemm multiplies, by constants, rows of a width that a norm can multiply."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in gemm.attribute}
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    if len(gemm.input) != 3 or {**_POOLER, "transB": 0, **attributes} != _POOLER:
        return False
    weight, bias = (sizes.get(name, ()) for name in gemm.input[1:])
    return len(weight) == 2 and bias == weight[:1] and weight[1] % _MULTIPLE == 0
