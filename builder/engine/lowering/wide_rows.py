# SPDX-License-Identifier: Apache-2.0
"""Lets a norm in half precision give rows that are outputs in float32 itself.

It also gives the rows of first tokens, where a pooler reads them.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs
from padfree.onnx_tools.analysis import (
    find_padfree,
    is_output,
    is_padfree,
    is_standard,
    padfree_attributes,
    remove_nodes,
)

from .readers import is_half_constant, is_to_float


def widen_rows_of_norms(graph: gs.Graph) -> None:
    """Where an output is a PadfreeLayerNorm's y cast to float32, takes the operator's y_fp32 instead, in place.

    That saves a kernel that reads and writes all tokens, and the numbers are not rounded on the way. A PadfreePool of y
    that takes first tokens becomes the norm's y_first. A y that nothing else reads is not made at all.
    """
    casts = {
        id(node.inputs[0]): node
        for node in graph.nodes
        if is_standard(node, "Cast") and is_output(graph, node.outputs[0]) and is_to_float(node)
    }
    for norm in find_padfree(graph, "PadfreeLayerNorm"):
        cast = casts.get(id(norm.outputs[0]))
        if cast is None or padfree_attributes(norm)["results"] != "act" or not any(map(is_half_constant, norm.inputs)):
            continue
        (y, *others), wide, pool = norm.outputs, cast.outputs[0], _first_tokens(graph, norm)
        first = [] if pool is None else [(pool.inputs[1], pool.outputs[0])]
        remove_nodes(graph, [cast] if pool is None else [cast, pool])
        is_read = bool(y.outputs) or is_output(graph, y)
        norm.attrs["results"] = "act_fp32" if is_read else "fp32"
        norm.outputs = [*([y] if is_read else []), wide, *others]
        for cu_seqlens, rows in first:
            norm.inputs.append(cu_seqlens)
            norm.outputs.append(rows)
            norm.attrs["has_first"] = 1


def _first_tokens(graph: gs.Graph, norm: gs.Node) -> gs.Node | None:
    """A PadfreePool that takes first tokens' rows of a norm, whose offsets are made before the norm."""
    early = {id(tensor) for tensor in graph.inputs}
    for node in graph.nodes:
        if node is norm:
            break
        early.update(map(id, node.outputs))
    for node in norm.outputs[0].outputs:
        if is_padfree(node, "PadfreePool") and node.inputs[0] is norm.outputs[0] and id(node.inputs[1]) in early:
            attributes = padfree_attributes(node)
            if attributes["mode"] == "first" and not attributes["normalize"]:
                return node
    return None
