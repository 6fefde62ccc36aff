# SPDX-License-Identifier: Apache-2.0
"""Tables of RotaryEmbedding with one row for the whole batch: torch writes them, and onnxruntime 1.32 spreads none."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from .skeleton import Names

_TABLES = (1, 2)  # places among the inputs
_POSITIONS = 3  # where there are positions, tables are looked up by them


def rotations_by_tables(model: ModelProto) -> list[NodeProto]:
    """The standard's RotaryEmbedding nodes whose tables [B, S, D/2] hold a row for every slot, not spread yet."""
    spread = {name for node in model.graph.node if node.op_type == "Expand" for name in node.output}
    return [
        node
        for node in model.graph.node
        if node.op_type == "RotaryEmbedding" and not node.domain and not any(node.input[_POSITIONS:])
        if not spread.issuperset(node.input[place] for place in _TABLES)
    ]


def spread_tables(graph: GraphProto, found: list[NodeProto], names: Names) -> None:
    """Gives every sequence a row of its own in the tables of these nodes."""
    made: dict[str, str] = {}
    nodes: list[NodeProto] = []
    wanted = {id(node) for node in found}
    for node in graph.node:
        for place in _TABLES if id(node) in wanted else ():
            table = node.input[place]
            if table not in made:
                made[table] = names.fresh(f"{table}_rows")
                nodes += _expanded(graph, table, node.input[0], made[table], names)
            node.input[place] = made[table]
        nodes.append(node)
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _expanded(graph: GraphProto, table: str, heads: str, result: str, names: Names) -> list[NodeProto]:
    """Nodes that make [B, S, D/2] of a table [1, S, D/2], and leave others as they are."""
    count, shape, ones = (names.fresh(f"{result}_{what}") for what in ("count", "shape", "ones"))
    graph.initializer.append(numpy_helper.from_array(np.ones(2, np.int64), ones))
    return [
        helper.make_node("Shape", [heads], [count], name=names.fresh(f"{count}_node"), start=0, end=1),
        helper.make_node("Concat", [count, ones], [shape], name=names.fresh(f"{shape}_node"), axis=0),
        helper.make_node("Expand", [table, shape], [result], name=names.fresh(f"{result}_node")),
    ]
