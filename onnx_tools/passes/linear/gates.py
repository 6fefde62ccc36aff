# SPDX-License-Identifier: Apache-2.0
"""Gated feed-forwards (GeGLU, SwiGLU): activation(u) * v, of two GEMMs of the same rows or two pieces of one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, disconnect, is_output, is_standard, node_name, used_once
from ...analysis.symbolic import Analysis, axis_of, slice_arguments, split_sizes
from ...match import Miss, NoMatch
from ...match.chains import find_activation
from ...match.chains.gemms import MULTIPLE, added_bias, check, is_candidate
from ..base import PassResult
from .columns import ColumnPart, Columns, Indices, indices_of_pairs
from .linear_node import padfree_linear

NAME = "gates"


@dataclass(frozen=True)
class _Branch:
    """A factor of a gate: columns of a GEMM with their bias and activation; `nodes` make it.

    `is_piece`: whether this is one of the pieces that the GEMM's result is cut into.
    """

    matmul: gs.Node
    columns: Indices
    bias: gs.Tensor | None
    bias_columns: Indices
    output: gs.Tensor
    nodes: tuple[gs.Node, ...]
    activation: str = "none"
    is_piece: bool = False


def gates(graph: gs.Graph, analysis: Analysis, precision: str) -> PassResult:
    """Puts one PadfreeLinear in the place of each gate and its GEMMs of tokens.

    The weights' columns come in blocks of 16: 8 of u, then the 8 of v that multiply them. `precision` is the graph's.
    """
    return _Gates(graph, analysis, precision).run()


class _Gates:
    """The gates of one graph."""

    def __init__(self, graph: gs.Graph, analysis: Analysis, precision: str) -> None:
        self._graph = graph
        self._analysis = analysis
        self._precision = precision
        self._editor = Editor(graph)
        self._columns = Columns(self._editor, precision)
        self._misses: list[Miss] = []

    def run(self) -> PassResult:
        """Finds what GEMMs lead to, then replaces the gates."""
        factors: dict[int, list[_Branch]] = {}  # by the id of the node that reads them
        for matmul in self._graph.nodes:
            for branch in self._branches(matmul) if is_candidate(self._analysis, matmul) else ():
                for reader in branch.output.outputs:
                    factors.setdefault(id(reader), []).append(branch)
        replaced_count = 0
        for node in list(self._graph.nodes):
            pair = factors.get(id(node), [])
            if not is_standard(node, "Mul") or len(pair) != 2 or not _belong_together(*pair):
                continue
            try:
                self._replace(node, *_order(node, *pair))
                replaced_count += 1
            except NoMatch as reason:
                self._misses.append(Miss(node_name(node), str(reason)))
        return PassResult(NAME, replaced_count, tuple(self._misses))

    def _branches(self, matmul: gs.Node) -> Iterator[_Branch]:
        """The branches that start at a GEMM [T,N]: one of all its columns, or two of the pieces that it is cut into."""
        bias = added_bias(self._graph, self._analysis, matmul.outputs[0])
        shape = self._analysis[bias.output].shape
        width = shape[-1].constant() if shape is not None and len(shape) == 2 else None
        if width is None:
            return
        every = np.arange(width)
        whole = _Branch(matmul, every, bias.addend, every, bias.output, bias.nodes)
        cuts = [(reader, _cut_columns(self._analysis, reader, every)) for reader in bias.output.outputs]
        if not cuts or is_output(self._graph, bias.output) or any(pieces is None for _, pieces in cuts):
            if sum(is_candidate(self._analysis, reader) for reader in matmul.inputs[0].outputs) > 1:
                with contextlib.suppress(NoMatch):  # the pass on GEMMs reports it
                    yield self._with_activation(whole)
            return
        pieces = [
            (reader, *piece) for reader, branches in cuts for piece in zip(reader.outputs, branches or (), strict=True)
        ]
        for reader, output, columns in pieces if len(pieces) == 2 else ():
            nodes = (*bias.nodes, reader)
            piece = replace(whole, columns=columns, bias_columns=columns, output=output, nodes=nodes, is_piece=True)
            try:
                yield self._with_activation(piece if bias.addend is not None else self._with_bias(piece))
            except NoMatch as reason:
                self._misses.append(Miss(node_name(matmul), str(reason)))

    def _with_bias(self, piece: _Branch) -> _Branch:
        """A piece with the bias that is added to it alone."""
        bias = added_bias(self._graph, self._analysis, piece.output)
        every, nodes = np.arange(piece.columns.size), (*piece.nodes, *bias.nodes)
        return replace(piece, bias=bias.addend, bias_columns=every, output=bias.output, nodes=nodes)

    def _with_activation(self, branch: _Branch) -> _Branch:
        """A branch with its activation, and the Cast after it. Raises NoMatch for an unknown activation."""
        activation = find_activation(self._graph, self._analysis, branch.output, any_type=True)
        if activation is not None:
            nodes = (*branch.nodes, *activation.nodes)
            branch = replace(branch, activation=activation.kind, output=activation.output, nodes=nodes)
        cast = self._cast_behind(branch.output)
        if cast is not None:
            branch = replace(branch, output=cast.outputs[0], nodes=(*branch.nodes, cast))
        return branch

    def _cast_behind(self, tensor: gs.Tensor) -> gs.Node | None:
        """The tensor's only reader, if that casts it to another float type."""
        reader = tensor.outputs[0] if used_once(self._graph, tensor) else None
        if reader is None or not is_standard(reader, "Cast"):
            return None
        return reader if "float" in str(self._analysis[reader.outputs[0]].dtype) else None

    def _replace(self, gate: gs.Node, u: _Branch, v: _Branch) -> None:
        """Replaces a gate by PadfreeLinear. Raises NoMatch where that operator cannot compute it."""
        result, count = gate.outputs[0], u.columns.size
        for branch in (u, v):
            check(self._analysis, branch.matmul, self._precision)
            if not used_once(self._graph, branch.output):
                raise NoMatch(f"'{node_name(gate)}' multiplies '{branch.output.name}', which something else needs too")
        if count % MULTIPLE:
            raise NoMatch(
                f"'{node_name(gate)}' multiplies [T,{count}] of GEMMs, and {count} is no multiple of {MULTIPLE}"
            )
        act = self._analysis[u.matmul.outputs[0]].dtype
        cast = self._cast_behind(result) if self._analysis[result].dtype != act else None
        result = result if cast is None else cast.outputs[0]
        if self._analysis[result].dtype != act:
            raise NoMatch(f"'{node_name(gate)}' makes {self._analysis[result].dtype} of GEMMs in {act}")
        x, name = u.matmul.inputs[0], u.matmul.name
        weight = self._pairs("gated_weight", (u.matmul.inputs[1], u.columns), (v.matmul.inputs[1], v.columns))
        bias = None
        if u.bias is not None or v.bias is not None:
            bias = self._pairs("gated_bias", (u.bias, u.bias_columns), (v.bias, v.bias_columns))
        disconnect(u.matmul, v.matmul, *u.nodes, *v.nodes, gate, *((cast,) if cast is not None else ()))
        padfree_linear(self._editor, name, [x, weight, bias, None], result, activation=u.activation, gated=True)

    def _pairs(self, stem: str, *sources: tuple[gs.Constant | None, Indices]) -> gs.Constant:
        """Columns of u's and v's constants, interleaved as the kernel reads pairs."""
        indices = indices_of_pairs(sources[0][1].size)
        parts = [
            ColumnPart(constant, columns, index) for (constant, columns), index in zip(sources, indices, strict=True)
        ]
        return self._columns.put(parts, stem)


def _cut_columns(analysis: Analysis, node: gs.Node, every: Indices) -> list[Indices] | None:
    """Which columns of its first input [T,N] each output of a Split or Slice has; None for other nodes."""
    facts = [analysis[tensor] for tensor in node.inputs]
    if is_standard(node, "Split") and axis_of(node, 2) == 1:
        sizes = split_sizes(node, facts)
        return None if sizes is None else np.split(every, np.cumsum(sizes)[:-1])
    limits = slice_arguments(node, facts) if is_standard(node, "Slice") else None
    if limits is None or limits[2] != [1] or limits[3][0] < 1:
        return None
    start, end = limits[0][0].constant(), limits[1][0].constant()
    return None if start is None or end is None else [every[start : end : limits[3][0]]]


def _belong_together(one: _Branch, other: _Branch) -> bool:
    """Whether both multiply the same rows, are equally wide, and use up the columns of their GEMMs."""
    if one is other or one.columns.size != other.columns.size:
        return False
    same_rows = one.matmul.inputs[0] is other.matmul.inputs[0]
    return same_rows and one.is_piece == other.is_piece == (one.matmul is other.matmul)


def _order(gate: gs.Node, one: _Branch, other: _Branch) -> tuple[_Branch, _Branch]:
    """The factor with the activation, and the other. Raises NoMatch where both have one."""
    if one.activation != "none" and other.activation != "none":
        raise NoMatch(f"'{node_name(gate)}' multiplies '{one.output.name}' and '{other.output.name}', both activated")
    return (one, other) if other.activation == "none" else (other, one)
