# SPDX-License-Identifier: Apache-2.0
"""Copies of graphs, and a record that tells whether a graph has changed."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs
from onnx_graphsurgeon.util.misc import SynchronizedList


def copy_of(
    graph: gs.Graph,
    nodes: Sequence[gs.Node] | None = None,
    inputs: Sequence[gs.Tensor] | None = None,
    outputs: Sequence[gs.Tensor] | None = None,
) -> gs.Graph:
    """A copy of an imported graph, or of a part of it; the weights are shared.

    It replaces Graph.copy, which copies every tensor twice and looks for subgraphs: an imported graph has none.
    """
    copies_by_name: dict[str, gs.Tensor] = {}

    def copies(of: Sequence[gs.Tensor]) -> list[gs.Tensor]:
        copied_tensors = []
        for tensor in of:
            copy = copies_by_name.get(tensor.name)
            if copy is None:
                copy = _copy(tensor)
                if tensor.name:  # inputs that are left out share the empty name, but are not one tensor
                    copies_by_name[tensor.name] = copy
            copied_tensors.append(copy)
        return copied_tensors

    new_inputs, results = (
        copies(graph.inputs if inputs is None else inputs),
        graph.outputs if outputs is None else outputs,
    )
    input_copies = [
        gs.Node(node.op, node.name, node.attrs.copy(), copies(node.inputs), copies(node.outputs), node.domain)
        for node in (graph.nodes if nodes is None else nodes)
    ]
    return gs.Graph(
        input_copies, new_inputs, copies(results), graph.name, graph.doc_string, graph.opset, graph.import_domains,
        functions=graph.functions, ir_version=graph.ir_version,
    )  # fmt: skip


def _copy(tensor: gs.Tensor) -> gs.Tensor:
    """As Tensor.copy, but without onnx-graphsurgeon's check of every attribute that is set in the usual way."""
    copy = object.__new__(type(tensor))
    vars(copy).update(vars(tensor))
    vars(copy).update(inputs=SynchronizedList(copy, "outputs", ()), outputs=SynchronizedList(copy, "inputs", ()))
    if isinstance(tensor, gs.Constant):
        vars(copy).update(data_location=None, _export_dtype=tensor.export_dtype)
    return copy


class Wiring:
    """A record of a graph's nodes, in their order, and of the tensors that they read and make, as they are now."""

    def __init__(self, graph: gs.Graph) -> None:
        self._strong = _parts(graph)  # kept alive, so that no other object gets one of their ids
        self._ids = list(map(id, self._strong))

    def is_that_of(self, graph: gs.Graph) -> bool:
        """Whether the graph still has these very nodes and tensors, not merely equal ones."""
        return self._ids == list(map(id, _parts(graph)))


_END = object()  # stands between nodes, and between the inputs and the outputs of a node


def _parts(graph: gs.Graph) -> list[object]:
    objects: list[object] = [*graph.inputs, _END, *graph.outputs]
    for node in graph.nodes:
        objects += (_END, node, *node.inputs, _END, *node.outputs)
    return objects
