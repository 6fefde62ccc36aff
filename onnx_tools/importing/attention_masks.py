# SPDX-License-Identifier: Apache-2.0
"""Masks of the Attention operator with one row for all queries: ONNX spreads them, and onnxruntime 1.32 does not."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from .skeleton import Names

_MASK = 3  # place among the inputs of Attention


def masks_of_one_row(model: ModelProto) -> list[NodeProto]:
    """The Attention nodes whose mask is [..., 1, keys], as far as the file says it."""
    graph = model.graph
    ranks = {item.name: list(item.type.tensor_type.shape.dim) for item in (*graph.value_info, *graph.input)}
    sizes = {name: [dim.dim_value for dim in dims] for name, dims in ranks.items()}
    sizes |= {item.name: list(item.dims) for item in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type == "Attention" and not node.domain and len(node.input) > _MASK:
            mask, queries = sizes.get(node.input[_MASK], []), sizes.get(node.input[0], [])
            if len(mask) > 1 and mask[-2] == 1 and len(queries) in (3, 4) and queries[-2] != 1:
                found.append(node)
    return found


def spread(graph: GraphProto, found: list[NodeProto], names: Names) -> None:
    """Gives every query a row of its own in the masks of these nodes."""
    made: dict[tuple[str, str], str] = {}
    nodes: list[NodeProto] = []
    wanted = {id(node) for node in found}
    for node in graph.node:
        if id(node) in wanted:
            key = (node.input[_MASK], node.input[0])
            if key not in made:
                made[key] = names.fresh(f"{key[0]}_rows")
                nodes += _expanded(graph, *key, made[key], names)
            node.input[_MASK] = made[key]
        nodes.append(node)
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _expanded(graph: GraphProto, mask: str, queries: str, result: str, names: Names) -> list[NodeProto]:
    """Nodes that make [..., queries, keys] of a mask [..., 1, keys]."""
    count, shape, one = (names.fresh(f"{result}_{what}") for what in ("count", "shape", "one"))
    graph.initializer.append(numpy_helper.from_array(np.ones(1, np.int64), one))
    return [
        helper.make_node("Shape", [queries], [count], name=names.fresh(f"{count}_node"), start=-2, end=-1),
        helper.make_node("Concat", [count, one], [shape], name=names.fresh(f"{shape}_node"), axis=0),
        helper.make_node("Expand", [mask, shape], [result], name=names.fresh(f"{result}_node")),
    ]
