# SPDX-License-Identifier: Apache-2.0
"""Refuses inputs that are no tokens of one sequence: tokens of two that attend to each other, or positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_graphsurgeon as gs

from ...analysis import S, is_standard, node_name, nodes_before
from ...analysis.symbolic import Analysis, Element, axis_of, leaves_of
from ...errors import RewriteError
from .evidence import is_gemm

Sources = Mapping[str, frozenset[str]]


def check_slots(graph: gs.Graph, analysis: Analysis) -> None:
    """Raises RewriteError for an input whose values are positions in the sequence by which a node takes tokens.

    Rows of a table of positions, which may be cut to the sequence's length, are no tokens.
    """
    sources = _sources(graph, None)
    for node in graph.nodes:
        if not is_standard(node, "Gather", "GatherElements", "GatherND"):
            continue
        facts, indices = analysis[node.inputs[0]], analysis[node.inputs[1]].expr
        if facts.shape is None or indices is None or not (facts.dtype or "").startswith(("float", "bfloat")):
            continue
        axis = 1 if node.op == "GatherND" else axis_of(node, len(facts.shape))
        names = sorted({leaf.source for leaf in leaves_of(indices, Element)})
        if names and _of(sources, node.inputs[0]) and axis < len(facts.shape) and facts.shape[axis] == S:
            raise RewriteError(
                f"input {_list(names)} holds positions in the sequence: '{node_name(node)}' ({node.op}) takes "
                "tokens by them; padfree's inputs hold values of tokens, at any position; export the encoder without "
                "that part, and take the tokens from its output"
            )


def check_sequences(graph: gs.Graph, analysis: Analysis, attentions: Iterable[gs.Node], mask: str | None) -> None:
    """Raises RewriteError for an attention whose queries and keys are made of different inputs.

    `mask` is the input that tells padding alone, of which both may be made.
    """
    sources = _sources(graph, mask)
    for node in attentions:
        pairs = [(_of(sources, one), _of(sources, two)) for one, two in _operands(analysis, node)]
        full_pairs = [(queries, keys) for queries, keys in pairs if queries and keys]
        if full_pairs and not any(queries & keys for queries, keys in full_pairs):
            queries, keys = full_pairs[0]
            raise RewriteError(
                f"attention '{node_name(node)}' is between two sequences: tokens made of {_list(queries)} read those "
                f"made of {_list(keys)}; padfree packs tokens of one sequence, which read each other; export the "
                "encoder alone"
            )


def _sources(graph: gs.Graph, mask: str | None) -> dict[str, frozenset[str]]:
    """The inputs, apart from `mask`, whose values each tensor is made of."""
    sources = {str(tensor.name): frozenset({str(tensor.name)} - {mask}) for tensor in graph.inputs}
    for node in graph.nodes:
        names = frozenset[str]()
        if not is_standard(node, "Shape", "Size"):
            for tensor in node.inputs:
                other = _of(sources, tensor)
                if other is not names:  # most operands are made of the same inputs
                    names = names | other if names else other
        sources.update((tensor.name, names) for tensor in node.outputs)
    return sources


def _of(sources: Sources, tensor: gs.Tensor) -> frozenset[str]:
    return sources.get(tensor.name, frozenset())


def _operands(analysis: Analysis, node: gs.Node) -> list[tuple[gs.Tensor, gs.Tensor]]:
    """The operands of every GEMM that the scores of an attention are made of."""
    if is_standard(node, "Attention"):
        return [(node.inputs[0], node.inputs[1])]
    makers = nodes_before(
        node.inputs[:1], lambda maker: not (is_gemm(analysis, maker) or is_standard(maker, "Shape", "Size"))
    )
    return [(maker.inputs[0], maker.inputs[1]) for maker in makers if is_gemm(analysis, maker)]


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
