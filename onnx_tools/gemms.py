# SPDX-License-Identifier: Apache-2.0
"""The GEMMs of a graph, and how their sizes follow from the batch: its work is counted from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from .analysis import Layout, is_padfree, is_standard, layout_of, node_name
from .analysis.symbolic import Analysis, Facts, Poly, Shape

LINEAR, ATTENTION, HEAD = PARTS = ("linear", "attention", "head")
LETTERS = frozenset("BST")
OWN_LENGTH = "L"
MATMULS: Mapping[str, int] = MappingProxyType({"MatMul": 1, "Gemm": 1, "MatMulInteger": 1, "QLinearMatMul": 3})
CONVOLUTIONS: Mapping[str, int] = MappingProxyType({"Conv": 1, "ConvInteger": 1, "QLinearConv": 3})
"""Operators with the position of their second factor: quantised ones have scales and zero points between the two."""
UNCOUNTED = ("ConvTranspose", "DeformConv", "Einsum", "GRU", "LSTM", "RNN")
"""Operators that multiply matrices and that the report names instead of counting them.

Einsum is one of them where it is not written out as other GEMMs.
"""
_STANDARD = (*MATMULS, *CONVOLUTIONS, "Attention")
_COUNTED_OPS = frozenset({*_STANDARD, "PadfreeAttention", "PadfreeLinear"})


@dataclass(frozen=True)
class GemmShape:
    """`count` equal GEMMs [rows, inner] x [inner, columns], each done `batch` times.

    Sizes are sums of products of integers and letters: B sequences, S their padded length, T tokens in all; with L,
    each sequence's own length, the GEMM is done once for every sequence. `part` says where in the model it belongs:
    "linear" (weights), "attention" (activations by activations) or "head" (no residual sum depends on it).
    """

    part: str
    op: str
    weights: bool
    batch: str
    rows: str
    inner: str
    columns: str
    count: int = 1

    @property
    def letters(self) -> set[str]:
        """The letters in its sizes."""
        return set().union(*(factors(size) for size in (self.batch, self.rows, self.inner, self.columns)))

    @property
    def padded(self) -> bool:
        """Whether it computes padding."""
        return "S" in self.letters

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> GemmShape:
        """The GEMMs whose values to_dict gave. Raises TypeError for other keys."""
        return GemmShape(**values)


@dataclass(frozen=True)
class Gemms:
    """The GEMMs of one graph, with equal ones joined, and the nodes whose matrix products could not be counted."""

    items: tuple[GemmShape, ...]
    uncounted: tuple[str, ...]


def factors(size: str) -> set[str]:
    """The letters in a size."""
    return {factor for term in size.split(" + ") for factor in term.split("*") if factor.isalpha()}


def gemms_of(graph: gs.Graph, analysis: Analysis) -> Gemms:
    """The GEMMs of a sorted graph."""
    gemms: list[tuple[int, gs.Node, GemmShape]] = []
    uncounted: list[str] = []
    below: dict[str, int] = {}  # tensor -> bits of the GEMMs that it is computed from
    body = 0
    residual = False
    for node in graph.nodes:
        bits = 0
        for tensor in node.inputs:
            bits |= below.get(tensor.name, 0)
        gemm = _gemm(node, analysis)
        if gemm is not None:
            bit = 1 << len(gemms)
            gemms.append((bit, node, gemm))
            bits |= bit
        elif _multiplies(node, analysis):
            uncounted.append(node_name(node))
        if _is_residual_sum(node, analysis, below):
            body, residual = body | bits, True
        below.update((tensor.name, bits) for tensor in node.outputs)
    counts: Counter[GemmShape] = Counter()
    for bit, node, gemm in gemms:
        per_sequence = layout_of(analysis[node.outputs[0]]) is Layout.PER_SEQUENCE
        head = not body & bit if residual else per_sequence
        counts[replace(gemm, part=HEAD) if head else gemm] += gemm.count
    return Gemms(tuple(replace(item, count=count) for item, count in counts.items()), tuple(uncounted))


def _multiplies(node: gs.Node, analysis: Analysis) -> bool:
    """Whether the node multiplies matrices that depend on the batch."""
    if not (is_standard(node, *UNCOUNTED, *_STANDARD) or is_padfree(node, "PadfreeLinear")):
        return False
    return not all(analysis[tensor].constant for tensor in node.inputs)


def _is_residual_sum(node: gs.Node, analysis: Analysis, below: Mapping[str, int]) -> bool:
    """Whether the node is x + f(x) over tokens or sequences, with GEMMs in f: such sums make an encoder's layers."""
    if is_padfree(node, "PadfreePostNorm"):
        return True
    if is_padfree(node, "PadfreeLayerNorm", "PadfreeLinear"):
        return bool(node.attrs.get("has_residual"))
    if not is_standard(node, "Add"):
        return False
    shapes = [analysis[tensor].shape for tensor in node.inputs]
    if shapes[0] is None or shapes[0] != shapes[1] or not LETTERS & _letters(shapes[0]):
        return False
    one, other = (below.get(tensor.name, 0) for tensor in node.inputs)
    return one != other and (one | other) in (one, other)


def _letters(shape: Shape) -> set[str]:
    return {str(atom) for size in shape for atom in size.atoms()}


def _gemm(node: gs.Node, analysis: Analysis) -> GemmShape | None:
    """The GEMM that a node is; None for other nodes, and for those whose sizes are not known."""
    if node.op not in _COUNTED_OPS:
        return None
    facts = [analysis[tensor] for tensor in node.inputs]
    out = analysis[node.outputs[0]].shape if node.outputs else None
    if is_padfree(node, "PadfreeAttention"):
        heads, head_size = (str(int(node.attrs[name])) for name in ("num_heads", "head_size"))
        return GemmShape(ATTENTION, node.op, False, heads, OWN_LENGTH, head_size, OWN_LENGTH, 2)
    second = MATMULS.get(node.op, CONVOLUTIONS.get(node.op, 1))
    if len(facts) <= second:
        return None
    left, right = facts[0], facts[second]
    if left.shape is None or right.shape is None or out is None or (left.constant and right.constant):
        return None
    if is_standard(node, "Attention"):
        return _attention(node, left.shape, right.shape)
    if is_standard(node, *MATMULS) or is_padfree(node, "PadfreeLinear"):
        return _matmul(node, left, right, out)
    return _convolution(node, right.shape, out) if is_standard(node, *CONVOLUTIONS) else None


def _matmul(node: gs.Node, left: Facts, right: Facts, out: Shape) -> GemmShape | None:
    assert left.shape is not None
    assert right.shape is not None
    if not left.shape or not right.shape:
        return None
    inner = left.shape[0] if node.attrs.get("transA") else left.shape[-1]
    weights = any(_is_weight(item) for item in (left, right))
    columns = out[-1] if len(right.shape) > 1 else Poly.of(1)
    if is_padfree(node, "PadfreeLinear"):
        columns = right.shape[-1]  # the output of a gated one has half as many
    leading = out[:-1] if len(right.shape) > 1 else out
    # With one weight for all rows it is one GEMM, however many axes the rows have.
    alone = len(right.shape) == 2 or len(leading) < 2
    batch, rows = (Poly.of(1), _count(leading)) if alone else (_count(leading[:-1]), leading[-1])
    return _gemm_of_sizes(LINEAR if weights else ATTENTION, node, weights, (batch, rows, inner, columns))


def _is_weight(facts: Facts) -> bool:
    """Whether a factor is a layer's weight: a table of positions that is cut to the sequence's length is not."""
    return facts.constant and (facts.rank or 0) > 1 and facts.static_shape() is not None


def _attention(node: gs.Node, query: Shape, key: Shape) -> GemmShape | None:
    """The standard Attention operator: query [B,H,S,D], or [B,S,H*D] with the number of heads as an attribute."""
    if len(query) == 4:
        sizes = (query[0] * query[1], query[2], query[3], key[2])
    else:
        heads, width = int(node.attrs.get("q_num_heads", 1)), query[-1].constant()
        if len(query) != 3 or width is None:
            return None
        sizes = (query[0] * heads, query[1], Poly.of(width // heads), key[1])
    return _gemm_of_sizes(ATTENTION, node, False, sizes, count=2)


def _convolution(node: gs.Node, weight: Shape, out: Shape) -> GemmShape | None:
    """A convolution over the tokens: [N,C,S] by weights [M, C / groups, kernel]."""
    groups = int(node.attrs.get("group", 1))
    columns = weight[0].constant()
    if columns is None:
        return None
    sizes = (Poly.of(groups), _count((out[0], *out[2:])), _count(weight[1:]), Poly.of(columns // groups))
    return _gemm_of_sizes(LINEAR, node, True, sizes)


def _gemm_of_sizes(
    part: str, node: gs.Node, weights: bool, sizes: tuple[Poly, Poly, Poly, Poly], count: int = 1
) -> GemmShape | None:
    """The GEMM of these sizes; None where one depends on anything but the batch."""
    if any(not {str(atom) for atom in size.atoms()} <= LETTERS for size in sizes):
        return None
    batch, rows, inner, columns = (str(size) for size in sizes)
    return GemmShape(part, node.op, weights, batch, rows, inner, columns, count)


def _count(sizes: Shape) -> Poly:
    return Poly.of(1) if not sizes else np.multiply.reduce(np.asarray(sizes, dtype=object))
