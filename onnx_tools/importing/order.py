# SPDX-License-Identifier: Apache-2.0
"""Sorts nodes after those that they read, as ONNX asks for: some tools append nodes, which onnxruntime sorts itself."""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush

from onnx import GraphProto, ModelProto, NodeProto

from ..files.model import without_initializers
from .skeleton import subgraphs


def in_order(model: ModelProto) -> ModelProto:
    """The model with sorted nodes; itself where they are sorted, or where some read each other in a circle.

    Weights are shared where they are held elsewhere. Nodes whose order does not matter keep theirs.
    """
    order = _order(model.graph)
    if order == list(range(len(order))):
        return model
    result = without_initializers(model)
    del result.graph.node[:]
    result.graph.node.extend(model.graph.node[index] for index in order)
    result.graph.initializer.extend(model.graph.initializer)
    return result


def _order(graph: GraphProto) -> list[int]:
    """The indices of a graph's nodes, each after those of the nodes that it reads."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    waiting, readers = dict[int, int](), defaultdict[int, list[int]](list)
    for index, node in enumerate(graph.node):
        before = {makers[name] for name in _reads(node) if name in makers}
        waiting[index] = len(before)
        for maker in before:
            readers[maker].append(index)
    ready, result = [index for index, count in waiting.items() if not count], list[int]()
    heapify(ready)
    while ready:
        index = heappop(ready)
        result.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, reader)
    return result if len(result) == len(graph.node) else list(range(len(graph.node)))


def _reads(node: NodeProto) -> set[str]:
    """The names that a node reads, and those that its subgraphs may take from around it."""
    names = set(node.input)
    for inner in subgraphs(node):
        names.update(value.name for value in inner.output)
        for item in inner.node:
            names |= _reads(item)
    return names
