# SPDX-License-Identifier: Apache-2.0
"""Walks through a graph from tensors, to what reads them or to what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_graphsurgeon as gs


def readers_after(
    tensors: Iterable[gs.Tensor], goes_on: Callable[[gs.Node, gs.Tensor], bool]
) -> Iterator[tuple[gs.Node, gs.Tensor]]:
    """The nodes that read the tensors, each with the tensor, and those that read their results, where it `goes_on`."""
    waiting, seen = list(tensors), set[int]()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            for node in tensor.outputs:
                yield node, tensor
                if goes_on(node, tensor):
                    waiting += node.outputs


def nodes_before(tensors: Iterable[gs.Tensor], goes_on: Callable[[gs.Node], bool]) -> Iterator[gs.Node]:
    """The nodes that make the tensors, each once, and those that make what they read, where it `goes_on`."""
    waiting, seen = list(tensors), set[int]()
    while waiting:
        for node in waiting.pop().inputs:
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                if goes_on(node):
                    waiting += node.inputs


def tensors_before(
    tensors: Iterable[gs.Tensor], reads: Callable[[gs.Node], Iterable[gs.Tensor]] = lambda node: node.inputs
) -> Iterator[gs.Tensor]:
    """The tensors and what they are computed from, the nearest first; `reads` tells what a node reads."""
    waiting, seen = list(tensors), set[int]()
    while waiting:
        tensor = waiting.pop(0)
        yield tensor
        for node in tensor.inputs:
            if id(node) not in seen:
                seen.add(id(node))
                waiting += reads(node)
