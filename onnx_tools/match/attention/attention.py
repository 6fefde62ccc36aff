# SPDX-License-Identifier: Apache-2.0
"""Finds attention from its Softmax (or Attention operator) outward and checks every part of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Positional, S, argument, is_standard, node_name
from ...analysis.symbolic import Analysis, Poly, Shape, axis_of, movement
from .. import NoMatch
from ..chains import HEADS_FIRST, KEYS_LAST, HeadsSource, Rotations, follow_context, trace_heads
from ..masks.mask import MaskUse, PaddingMask, TableRows, prove
from ..positions import Bias, Biases, DisentangledTables, DistanceTables
from ..values import OPEN, Window, table_rows
from .scores import Scores, scores_of
from .weights import check_masked_alike, readers_of


@dataclass(frozen=True)
class Attention:
    """An attention that PadfreeAttention can compute; K and V may have fewer heads than Q."""

    node: str
    q: HeadsSource
    k: HeadsSource
    v: HeadsSource
    scale: float
    mask: PaddingMask
    bias: Bias | DisentangledTables | None
    context: gs.Tensor  # [B,S,H*D], or [B,H,S,D]

    @property
    def num_heads(self) -> int:
        """The number of query heads, H."""
        return self.q.num_heads

    @property
    def by_distance(self) -> bool:
        """Whether distances between tokens matter that padding between them would change."""
        between_slots = self.bias is not None and not (isinstance(self.bias, Bias) and self.bias.counts_tokens)
        return between_slots or not self.mask.window.by_order

    @property
    def head_size(self) -> int:
        """The size of a head, D."""
        return int(self.q.columns.shape[1])


def is_candidate(analysis: Analysis, node: gs.Node) -> bool:
    """Whether the node is an Attention operator, or a Softmax whose last axis may be the sequence."""
    if is_standard(node, "Attention"):
        return True
    if not is_standard(node, "Softmax"):
        return False
    shape = analysis[node.inputs[0]].shape
    return shape is None or (len(shape) >= 3 and not shape[-1].atoms() <= {"B", "T"})


@dataclass(frozen=True)
class Surroundings:
    """What is known of the graph that attentions are in; `rows` are those of the tables that inputs choose from."""

    positional: Positional
    rotations: Rotations
    biases: Biases
    tables: DistanceTables
    rows: TableRows

    @property
    def analysis(self) -> Analysis:
        """The analysis of the graph."""
        return self.positional.analysis


def surroundings(graph: gs.Graph, analysis: Analysis, longest: int | None) -> Surroundings:
    """What is known of a sorted graph; `longest` is the length that its tables allow, None: any."""
    positional = Positional(graph, analysis, longest)
    rows = {tensor.name: table_rows(tensor) for tensor in graph.inputs}
    biases = Biases(positional)
    return Surroundings(positional, Rotations(positional), biases, DistanceTables(positional, biases), rows)


def match(around: Surroundings, node: gs.Node) -> Attention:
    """Checks the attention around a candidate. Raises NoMatch."""
    analysis = around.analysis
    if is_standard(node, "Attention"):
        return _match_operator(around, node)
    name = node_name(node)
    rank = analysis[node.inputs[0]].rank
    if axis_of(node, rank) not in (-1, (rank or 0) - 1):
        raise NoMatch(f"Softmax '{name}' is not over the last axis")
    _check_length(analysis[node.inputs[0]].shape, name)
    matmul, scores = scores_of(around.positional, node)
    readers = readers_of(analysis, node.outputs[0])
    if len(readers) != 1:
        raise NoMatch(f"the weights of Softmax '{name}' are read by {len(readers)} MatMuls instead of one")
    values, again = readers[0].matmul, list(readers[0].uses)
    q, k, v = _heads(around, matmul.inputs[0], matmul.inputs[1], values.inputs[1], keys=KEYS_LAST)
    k, v = (_repeat(item, q.num_heads) if item.num_heads == 1 and not q.by_head else item for item in (k, v))
    _check_heads(q, k, v)
    if scores.parted and q.by_head:
        raise NoMatch(f"the scores of '{name}' have batch and heads merged in another order than Q has")
    shape = _four_axes(analysis[matmul.outputs[0]].shape, q)
    scores.sort_positions(shape, name, around.rows, analysis)
    if analysis[matmul.outputs[0]].rank == 3:
        scores.uses, again = ([_with_heads(use, q) for use in uses] for uses in (scores.uses, again))
    mask = prove(scores.uses, shape, name, around.rows)
    check_masked_alike(again, mask, shape, name, around.rows)
    scale = scores.factor * q.factor * k.factor
    bias = around.biases.total(scores.positions, q.num_heads, mask.window, mask.keeps, by_head=q.by_head)
    tables = around.tables.total(scores.gathered, q, k, scale)
    if tables is not None and (bias is not None or mask.window != Window()):
        raise NoMatch(f"the scores of '{name}' have tables by distance, and a window or another bias beside them")
    context = follow_context(analysis, values.outputs[0], *q.columns.shape, by_head=q.by_head)
    k, v = (k, v) if tables is not None else _share(k, v)
    return Attention(name, q, k, v, scale, mask, tables or bias, context)


def _check_length(shape: Shape | None, name: str) -> None:
    """Raises NoMatch for scores of sequences that the model itself has made longer or shorter."""
    if shape is None or len(shape) < 3 or shape[-1] != shape[-2] or shape[-1] == S:
        return
    length = f"{shape[-1]} slots" if shape[-1].atoms() <= S.atoms() else "another length than S"
    raise NoMatch(
        f"the scores of '{name}' are over sequences of {length}, where the inputs have S slots: the model pads, "
        "lengthens or cuts its sequences itself, and only attention over the inputs' own slots is packed"
    )


def _heads(
    around: Surroundings, *tensors: gs.Tensor, keys: tuple[int, ...] = HEADS_FIRST
) -> tuple[HeadsSource, HeadsSource, HeadsSource]:
    """Where Q, K and V come from: Q and K before their rotations, where both are rotated alike.

    `keys` is the permutation that makes [B,H,S,D] of K. Raises NoMatch.
    """
    try:
        q, k = _before_rotation(around, tensors[0], tensors[1], keys)
    except NoMatch:
        q = trace_heads(around.analysis, tensors[0], "Q")
        k = trace_heads(around.analysis, tensors[1], "K", perm=keys)
    return q, k, trace_heads(around.analysis, tensors[2], "V")


def _before_rotation(
    around: Surroundings, q: gs.Tensor, k: gs.Tensor, keys: tuple[int, ...]
) -> tuple[HeadsSource, HeadsSource]:
    """Where Q and K come from before their rotations. Raises NoMatch unless both are rotated alike."""
    queries = trace_heads(around.analysis, q, "Q", rotations=around.rotations)
    heads_of_keys = trace_heads(around.analysis, k, "K", perm=keys, rotations=around.rotations)
    if (
        queries.rotation is None
        or heads_of_keys.rotation is None
        or queries.rotation.pairs != heads_of_keys.rotation.pairs
    ):
        raise NoMatch("Q and K are not rotated alike")
    return queries.in_pairs(), heads_of_keys.in_pairs()


def _check_heads(q: HeadsSource, k: HeadsSource, v: HeadsSource) -> None:
    shapes = [item.columns.shape for item in (q, k, v)]
    if len(set(shapes)) != 1:
        text = ", ".join(f"{heads} x {size}" for heads, size in shapes)
        raise NoMatch(f"Q, K and V have different heads (heads x size: {text}); PadfreeAttention needs equal ones")
    if len({item.by_head for item in (q, k, v)}) != 1:
        raise NoMatch("Q, K and V have batch and heads merged in different orders")
    if v.factor != 1.0:
        raise NoMatch(f"V is multiplied by {v.factor}")


def _share(k: HeadsSource, v: HeadsSource) -> tuple[HeadsSource, HeadsSource]:
    """K and V with every head once, where query heads share theirs."""
    once = k.with_shared_heads(), v.with_shared_heads()
    return once if once[0].num_heads == once[1].num_heads else (k, v)


def _four_axes(shape: Shape | None, q: HeadsSource) -> Shape:
    """The shape [B,H,S,S]. Raises NoMatch where the shape of the scores is neither that nor [B*H,S,S]."""
    batch, length, heads = Poly.atom("B"), Poly.atom("S"), Poly.of(int(q.columns.shape[0]))
    expected = (batch, heads, length, length)
    if shape not in (expected, (batch * heads, length, length)):
        text = "unknown" if shape is None else ", ".join(str(size) for size in shape)
        raise NoMatch(f"the scores have the shape [{text}] instead of [{', '.join(str(s) for s in expected)}]")
    return expected


def _with_heads(use: MaskUse, q: HeadsSource) -> MaskUse:
    """A mask of scores [B*H,S,S] as one of [B,H,S,S]; others stay as they are."""
    shape, batch, heads = use.facts.shape, Poly.atom("B"), Poly.of(int(q.columns.shape[0]))
    if shape is None or len(shape) != 3 or shape[0] not in (batch * heads, Poly.of(1)):
        return use
    first = (Poly.of(1), Poly.of(1)) if shape[0].constant() == 1 else (batch, heads)
    if not q.by_head:
        return replace(use, facts=movement.reshape(use.facts, [*first, *shape[1:]], False))
    apart = movement.reshape(use.facts, [*first[::-1], *shape[1:]], False)
    return replace(use, facts=movement.transpose(apart, [1, 0, 2, 3]))


def _match_operator(around: Surroundings, node: gs.Node) -> Attention:
    """Checks an Attention operator of opset 23. Raises NoMatch."""
    analysis, name = around.analysis, node_name(node)
    if float(node.attrs.get("softcap", 0.0)) != 0.0:
        raise NoMatch(f"Attention '{name}' caps its scores (softcap)")
    if any(argument(node, position) is not None for position in (4, 5, 6)):
        raise NoMatch(f"Attention '{name}' reads past keys, which an encoder does not have")
    if any(tensor.outputs for tensor in node.outputs[1:]):
        raise NoMatch(f"Attention '{name}' gives out its keys or scores")
    tensors = node.inputs[:3]
    if analysis[tensors[0]].rank == 3:
        heads, fewer = (int(node.attrs.get(key, 0)) for key in ("q_num_heads", "kv_num_heads"))
        if heads == 0 or fewer == 0 or heads % fewer:
            raise NoMatch(f"Attention '{name}' has {heads} heads for Q and {fewer} for K and V")
        q = _whole(analysis, tensors[0], heads, "Q")
        k, v = (
            _repeat(_whole(analysis, tensor, fewer, what), heads)
            for tensor, what in zip(tensors[1:], "KV", strict=True)
        )
    else:
        q, k, v = _heads(around, *tensors)
        k, v = (_repeat(item, q.num_heads) for item in (k, v))
    _check_heads(q, k, v)
    heads, size = q.columns.shape
    scale = float(node.attrs.get("scale", 1.0 / math.sqrt(size)))
    mask, scores = argument(node, 3), Scores()
    if mask is not None and analysis[mask].dtype == "bool":
        scores.uses.append(MaskUse(analysis[mask], "select"))
    elif mask is not None:
        scores.add(around.positional, mask, 1.0)
    batch, length = Poly.atom("B"), Poly.atom("S")
    shape = (batch, Poly.of(int(heads)), length, length)
    scores.sort_positions(shape, name, around.rows, analysis)
    rules = prove(scores.uses, shape, name, around.rows)
    if int(node.attrs.get("is_causal", 0)):
        rules = replace(rules, window=rules.window & Window(OPEN, 0))
    bias = around.biases.total(scores.positions, q.num_heads, rules.window, rules.keeps)
    context = node.outputs[0]
    if analysis[tensors[0]].rank == 4:
        context = follow_context(analysis, context, heads, size)
    return Attention(name, q, *_share(k, v), scale * q.factor * k.factor, rules, bias, context)


def _repeat(source: HeadsSource, heads: int) -> HeadsSource:
    """The source with every head repeated for the query heads that share it. Raises NoMatch."""
    if heads % source.num_heads:
        raise NoMatch(f"{heads} query heads do not share {source.num_heads} heads of K and V alike")
    return replace(source, columns=np.repeat(source.columns, heads // source.num_heads, axis=0))


def _whole(analysis: Analysis, tensor: gs.Tensor, heads: int, what: str) -> HeadsSource:
    shape = analysis[tensor].shape
    width = None if shape is None else shape[2].constant()
    if shape is None or width is None or shape[:2] != (Poly.atom("B"), Poly.atom("S")) or width % heads:
        raise NoMatch(f"{what} is no [batch, sequence, heads * size] tensor")
    return HeadsSource(tensor, np.arange(width).reshape(heads, width // heads), 1.0)
