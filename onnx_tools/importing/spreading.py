# SPDX-License-Identifier: Apache-2.0
"""Expands inputs that have one row for all to a row for each: ONNX broadcasts them in a node, onnxruntime does not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, numpy_helper

from ..files.message_builder import MessageBuilder
from .skeleton import Names


@dataclass(frozen=True)
class Spread:
    """An input of a node that gets as many rows as an axis of another tensor has elements; axes after them stay.

    Attributes:
        node: the name of the node's first output.
        position: position among the node's inputs.
        like: the other tensor, which is there before the node.
        axis: of `like`; from the end where it is below 0, and then not the last one.
        trailing_axes: the number of axes after the rows.
    """

    node: str
    position: int
    like: str
    axis: int
    trailing_axes: int


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
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _expand(graph: GraphProto, item: Spread, source: str, result: str, names: Names) -> list[NodeProto]:
    """The nodes that make the rows of a tensor."""
    count, shape, ones = (names.fresh(f"{result}_{what}") for what in ("count", "shape", "ones"))
    graph.initializer.append(numpy_helper.from_array(np.ones(item.trailing_axes, np.int64), ones))
    new = MessageBuilder()
    new.op("Shape", item.like, output=count, start=item.axis, end=item.axis + 1)
    new.op("Concat", count, ones, output=shape, axis=0)
    new.op("Expand", source, shape, output=result)
    return list(new.graph.node)
