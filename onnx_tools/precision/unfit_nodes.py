# SPDX-License-Identifier: Apache-2.0
"""Padfree nodes that have to stay float32 in a half precision graph become standard operators, which can."""

from __future__ import annotations

from collections.abc import Container

import onnx_graphsurgeon as gs

from ..analysis import Editor, is_padfree, replace_node, takes_rows
from .norm_nodes import add_standard_norm
from .pool_nodes import add_standard_pool


def expand_unfit_nodes(graph: gs.Graph, unfit: Container[str]) -> bool:
    """Expands, in place, norms that make or read unfit tensors, and pools that take single rows of them.

    Returns whether there were any.
    """
    unfit_nodes = [node for node in graph.nodes if _is_unfit(node, unfit)]
    editor = Editor(graph)
    for node in unfit_nodes:
        count = len(graph.nodes)
        (add_standard_norm if node.op == "PadfreeLayerNorm" else add_standard_pool)(editor, node)
        replace_node(graph, node, count)
    return bool(unfit_nodes)


def _is_unfit(node: gs.Node, unfit: Container[str]) -> bool:
    if is_padfree(node, "PadfreeLayerNorm"):
        return any(tensor.name in unfit for tensor in (*node.inputs, *node.outputs))
    return is_padfree(node, "PadfreePool") and takes_rows(node) and node.inputs[0].name in unfit
