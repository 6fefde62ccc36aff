# SPDX-License-Identifier: Apache-2.0
"""Brings an imported graph into one flat list of standard operators: replaces fused operators and known branches."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from ..analysis import Editor, disconnect, inline_constants, node_name, opset
from ..analysis.symbolic import Facts, constant_of, facts_of_inputs, learn
from ..errors import RewriteError
from .control_flow import graphs_in, refusal
from .fused import expand_fused, is_fused
from .sequences import take_apart


def standardise(graph: gs.Graph) -> None:
    """Replaces fused operators by what they stand for, and every If whose condition is known by its branch, in place.

    The nodes must be sorted. Raises RewriteError for a fused operator that cannot be
    imported, and for control flow that depends on the inputs.
    """
    version = opset(graph)
    inline_constants(graph)
    nodes, walk = list(graph.nodes), _StandardWalk(graph, version)
    graph.nodes.clear()
    walk.add(nodes)
    domains = {node.domain or "" for node in graph.nodes}
    graph.import_domains = [item for item in graph.import_domains or [] if item.domain in domains | {""}]


class _StandardWalk:
    """Puts nodes into the graph one by one, and collects facts about their tensors on the way."""

    def __init__(self, graph: gs.Graph, version: int) -> None:
        self._graph, self._version = graph, version
        self._editor = Editor(graph)
        self._facts: dict[str, Facts] = facts_of_inputs(graph)

    def add(self, nodes: list[gs.Node]) -> None:
        """Adds sorted nodes, or the nodes that take their place."""
        for node in nodes:
            if not node.outputs:
                continue  # a constant whose values the tensor holds now
            if graphs_in(node):
                self._choose(node)
                continue
            count = len(self._graph.nodes)
            if take_apart(self._editor, self._facts_of, node):
                for new_node in self._graph.nodes[count:]:
                    learn(self._facts, new_node)
                continue
            learn(self._facts, node)  # for a fused node, about its constants
            if is_fused(node, self._version):
                expand_fused(self._editor, self._facts, node)
            else:
                self._graph.nodes.append(node)

    def _choose(self, node: gs.Node) -> None:
        """Puts the nodes of an If's branch in its place; an If inside that branch is resolved in its turn."""
        condition = self._condition(node) if node.op == "If" else None
        if condition is None:
            raise refusal(node, self._graph, self._facts_of)
        chosen_branch, other_branch = ("then_branch", "else_branch") if condition else ("else_branch", "then_branch")
        disconnect(*_all_nodes(node.attrs[other_branch]))
        branch, outputs = node.attrs[chosen_branch], list(node.outputs)
        if len(branch.outputs) != len(outputs):
            raise RewriteError(
                f"the model is not valid ONNX: node '{node_name(node)}' (If) has {len(outputs)} outputs and its branch "
                f"{len(branch.outputs)}; export it again"
            )
        disconnect(node)
        inline_constants(branch)
        for tensor in branch.tensors().values():
            if isinstance(tensor, gs.Constant):  # another branch may have one of the same name
                tensor.name = self._editor.fresh(tensor.name)
        for inner in branch.nodes:
            for tensor in inner.outputs:
                tensor.name = self._editor.fresh(tensor.name)
            inner.name = self._editor.fresh(inner.name or inner.op)
        results = [
            gs.Node("Identity", self._editor.fresh(f"{output.name}_chosen"), {}, [result], [output])
            for result, output in zip(branch.outputs, outputs, strict=True)
        ]
        self.add([*branch.nodes, *results])

    def _condition(self, node: gs.Node) -> float | None:
        """The value of an If's condition, where it is known."""
        return self._facts_of(node.inputs[0]).scalar()

    def _facts_of(self, tensor: gs.Tensor) -> Facts:
        return constant_of(tensor) if isinstance(tensor, gs.Constant) else self._facts.get(tensor.name, Facts())


def _all_nodes(graph: gs.Graph) -> Iterator[gs.Node]:
    for node in graph.nodes:
        yield node
        for inner in graphs_in(node):
            yield from _all_nodes(inner)
