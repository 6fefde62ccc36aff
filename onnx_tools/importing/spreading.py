# SPDX-License-Identifier: Apache-2.0
"""Expands inputs that have one row for all to a row for each: ONNX broadcasts them in a node, onnxruntime does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper

from ..files import MessageBuilder, replace_items
from .skeleton import Names

SPREAD = frozenset({"Attention", "RotaryEmbedding"})
"""The operators with inputs that may have to be spread."""
_MASK = 3  # its position among the inputs of Attention
_TABLES = (1, 2)  # their positions among those of RotaryEmbedding
_POSITIONS = 3  # where this input is there, it chooses rows of the tables


@dataclass(frozen=True)
class Spread:
    """An input of a node that gets as many rows as an axis of another tensor has elements; axes after them stay.

    Attributes:
        node: the name of the node's first output.
        position: position among the node's inputs.
        like: the other tensor, which is there before the node.
        axis: an axis of `like`; below 0 it counts from the end, and is not the last one then.
        trailing_axes: the number of axes after the rows.
    """

    node: str
    position: int
    like: str
    axis: int
    trailing_axes: int


def inputs_of_one_row(model: ModelProto) -> list[Spread]:
    """The masks of Attention and tables of RotaryEmbedding that torch writes, and onnxruntime 1.32 does not take."""
    return [*_masks_of_one_row(model), *_tables_of_one_row(model)]


def _masks_of_one_row(model: ModelProto) -> list[Spread]:
    """The masks [..., 1, keys] of Attention nodes, where the file tells shapes: every query is to have its own row."""
    graph = model.graph
    ranks = {item.name: list(item.type.tensor_type.shape.dim) for item in (*graph.value_info, *graph.input)}
    sizes = {name: [dim.dim_value for dim in dims] for name, dims in ranks.items()}
    sizes |= {item.name: list(item.dims) for item in graph.initializer}
    spreads = []
    for node in graph.node:
        if node.op_type == "Attention" and not node.domain and len(node.input) > _MASK:
            mask, queries = sizes.get(node.input[_MASK], []), sizes.get(node.input[0], [])
            if len(mask) > 1 and mask[-2] == 1 and len(queries) in (3, 4) and queries[-2] != 1:
                spreads.append(Spread(node.output[0], _MASK, node.input[0], axis=-2, trailing_axes=1))
    return spreads


def _tables_of_one_row(model: ModelProto) -> list[Spread]:
    """The tables of the standard's RotaryEmbedding that hold angles for every slot and are not expanded yet.

    They are to become [B, S, D/2], with a row for every sequence; expanding one that has these changes nothing.
    """
    spread = {name for node in model.graph.node if node.op_type == "Expand" for name in node.output}
    like: dict[str, str] = {}  # heads of the first node that reads a table, by table
    return [
        Spread(node.output[0], position, like.setdefault(node.input[position], node.input[0]), axis=0, trailing_axes=2)
        for node in model.graph.node
        if node.op_type == "RotaryEmbedding" and not node.domain and not any(node.input[_POSITIONS:])
        if not spread.issuperset(node.input[position] for position in _TABLES)
        for position in _TABLES
    ]


def spread(graph: GraphProto, spreads: Iterable[Spread], names: Names) -> None:
    """Puts an Expand before these inputs, a single one for nodes that need the same."""
    spreads_by_source = defaultdict[str, list[Spread]](list)
    for item in spreads:
        spreads_by_source[item.node].append(item)
    names_of_rows: dict[tuple[str, str], str] = {}
    nodes: list[NodeProto] = []
    for node in graph.node:
        for item in spreads_by_source.get(node.output[0], ()) if node.output else ():
            key = (node.input[item.position], item.like)
            if key not in names_of_rows:
                names_of_rows[key] = names.fresh(f"{key[0]}_rows")
                nodes += _expand(graph, item, key[0], names_of_rows[key], names)
            node.input[item.position] = names_of_rows[key]
        nodes.append(node)
    replace_items(graph.node, nodes)


def _expand(graph: GraphProto, item: Spread, source: str, result: str, names: Names) -> list[NodeProto]:
    """The nodes that make the rows of a tensor."""
    count, shape, ones = (names.fresh(f"{result}_{what}") for what in ("count", "shape", "ones"))
    graph.initializer.append(numpy_helper.from_array(np.ones(item.trailing_axes, np.int64), ones))
    new = MessageBuilder()
    new.op("Shape", item.like, output=count, start=item.axis, end=item.axis + 1)
    new.op("Concat", count, ones, output=shape, axis=0)
    new.op("Expand", source, shape, output=result)
    return list(new.graph.node)
