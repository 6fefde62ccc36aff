# SPDX-License-Identifier: Apache-2.0
"""Pooling that norms its rows and gives float32 itself.

Where only pooling reads the last norm's rows, one kernel reads the rows before the norm and gives the vectors; norm,
sum, L2 norm and cast would take four.
"""

from __future__ import annotations

import onnx
from padfree.onnx_tools.operators import node_attributes, padfree_nodes, set_attribute

from .readers import HALVES, is_to_float, only_reader

_MULTIPLE, _MOST = 8, 1024
"""The width of rows that PadfreePool norms is a multiple of the first, and at most the second."""


def merge_pools(model: onnx.ModelProto) -> None:
    """Lets every PadfreePool of half precision take over a norm and the cast after it, in place.

    Each only where nothing else reads the tensor between. The norm may follow a pool that takes single rows.
    """
    graph = model.graph
    for pool in [node for node in padfree_nodes(graph) if node.op_type == "PadfreePool"]:
        ahead = next((node for node in padfree_nodes(graph) if pool.input[0] in node.output), None)
        if ahead is not None and only_reader(graph, ahead.output[0], "PadfreePool") and _can_norm(graph, ahead, pool):
            pool.input[0] = ahead.input[0]
            _take_norm(graph, ahead, pool)
        norm = only_reader(graph, pool.output[0], "PadfreeLayerNorm")
        if norm is not None and _is_row(pool) and _can_norm(graph, norm, pool):
            pool.output[0] = norm.output[0]
            _take_norm(graph, norm, pool)
        cast = only_reader(graph, pool.output[0], "Cast")
        if cast is not None and is_to_float(cast):
            pool.output[0] = cast.output[0]
            set_attribute(pool, "results", "fp32")
            graph.node.remove(cast)


def _is_row(pool: onnx.NodeProto) -> bool:
    """Whether a pool gives a row as it is, so that a norm after it is one before it; the norm of zeros nobody needs."""
    attributes = node_attributes(pool)
    return attributes["mode"] in ("first", "last", "each") and not attributes["normalize"]


def _can_norm(graph: onnx.GraphProto, norm: onnx.NodeProto, pool: onnx.NodeProto) -> bool:
    """Whether a node is a norm that adds nothing to its rows, and the pool can take it over."""
    if norm.op_type != "PadfreeLayerNorm" or node_attributes(pool)["has_norm"]:
        return False
    attributes = node_attributes(norm)
    if attributes["results"] != "act" or any(attributes[f"has_{name}"] for name in ("bias", "residual", "sum")):
        return False
    constants = {tensor.name: tensor for tensor in graph.initializer}
    if not set(norm.input[1:]) <= set(constants):  # gamma and beta, which the kernel reads early
        return False
    gamma = constants[norm.input[1]]
    if gamma.data_type not in HALVES or node_attributes(pool)["mode"] == "max":
        return False
    return bool(gamma.dims[0] % _MULTIPLE == 0 and gamma.dims[0] <= _MOST)


def _take_norm(graph: onnx.GraphProto, norm: onnx.NodeProto, pool: onnx.NodeProto) -> None:
    attributes = node_attributes(norm)
    pool.input.extend(norm.input[1:])
    set_attribute(pool, "has_norm", 1)
    for name in ("epsilon", "has_beta", "rms"):
        set_attribute(pool, name, attributes[name])
    graph.node.remove(norm)
