# SPDX-License-Identifier: Apache-2.0
"""Lets a norm in half precision give rows that are outputs in float32 itself.

It also gives the rows of first tokens, where a pooler reads them.
"""

from __future__ import annotations

import onnx
from padfree.onnx_tools.operators import node_attributes, padfree_nodes, set_attribute

from .readers import HALVES, is_to_float


def widen_rows_of_norms(model: onnx.ModelProto) -> None:
    """Where an output is a PadfreeLayerNorm's y cast to float32, takes the operator's y_fp32 instead, in place.

    That saves a kernel that reads and writes all tokens, and the numbers are not rounded on the way. A PadfreePool of y
    that takes first tokens becomes the norm's y_first. A y that nothing else reads is not made at all.
    """
    outputs = {value.name for value in model.graph.output}
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    casts = {
        node.input[0]: node
        for node in model.graph.node
        if node.op_type == "Cast" and not node.domain and node.output[0] in outputs and is_to_float(node)
    }
    for norm in list(padfree_nodes(model.graph)):
        cast = casts.get(norm.output[0])
        in_half = any(kinds.get(name) in HALVES for name in norm.input)
        if cast is None or norm.op_type != "PadfreeLayerNorm" or not in_half:
            continue
        if node_attributes(norm)["results"] != "act":
            continue
        y, wide = norm.output[0], cast.output[0]
        model.graph.node.remove(cast)
        pool = _first_tokens(model.graph, norm)
        if pool is not None:
            model.graph.node.remove(pool)
        is_read = y in outputs or any(y in node.input for node in model.graph.node)
        norm.output[:] = [*([y] if is_read else []), wide, *norm.output[1:]]
        set_attribute(norm, "results", "act_fp32" if is_read else "fp32")
        if pool is not None:
            norm.input.append(pool.input[1])
            norm.output.append(pool.output[0])
            set_attribute(norm, "has_first", 1)


def _first_tokens(graph: onnx.GraphProto, norm: onnx.NodeProto) -> onnx.NodeProto | None:
    """A PadfreePool that takes first tokens' rows of a norm, whose offsets are made before the norm."""
    names = {value.name for value in graph.input}
    for node in graph.node:
        if node is norm:
            break
        names.update(node.output)
    for node in padfree_nodes(graph):
        if node.op_type == "PadfreePool" and node.input[0] == norm.output[0] and node.input[1] in names:
            attributes = node_attributes(node)
            if attributes["mode"] == "first" and not attributes["normalize"]:
                return node
    return None
