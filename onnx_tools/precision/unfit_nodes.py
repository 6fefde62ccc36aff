# SPDX-License-Identifier: Apache-2.0
"""Padfree nodes that have to stay float32 in a half precision graph become standard operators, which can."""

from __future__ import annotations

from collections.abc import Container

from onnx import ModelProto, NodeProto, TensorProto

from .norm_nodes import standard_norm
from .pool_nodes import standard_pool, takes_rows


def expand_unfit_nodes(model: ModelProto, unfit: Container[str]) -> None:
    """Expands, in place, norms that make or read unfit tensors, and pools that take single rows of them."""
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        new_nodes, constants = _expand(model, node, unfit)
        model.graph.node.extend(new_nodes)
        model.graph.initializer.extend(constants)


def _expand(model: ModelProto, node: NodeProto, unfit: Container[str]) -> tuple[list[NodeProto], list[TensorProto]]:
    """The nodes and constants in place of a node; the node itself where it may stay."""
    if node.op_type == "PadfreeLayerNorm" and any(name in unfit for name in (*node.input, *node.output)):
        return standard_norm(model, node)
    if node.op_type == "PadfreePool" and takes_rows(node) and node.input[0] in unfit:
        return standard_pool(node)
    return [node], []
