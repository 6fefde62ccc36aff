# SPDX-License-Identifier: Apache-2.0
"""Finds attention from its Softmax (or Attention operator) outward and checks every part of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis.graph import argument, is_standard, made_by, node_name, producer
from ...analysis.symbolic import Analysis, Poly, movement
from ...analysis.symbolic.facts import Shape
from ..base import NoMatch
from ..masks.mask import MaskUse, PaddingMask, Rows, prove
from .heads import HeadsSource, follow_context, scale_of, trace_heads


@dataclass(frozen=True)
class Attention:
    """An attention that PadfreeAttention can compute."""

    node: str
    q: HeadsSource
    k: HeadsSource
    v: HeadsSource
    scale: float
    mask: PaddingMask
    context: gs.Tensor  # [B,S,H*D]

    @property
    def num_heads(self) -> int:
        """H."""
        return int(self.q.columns.shape[0])

    @property
    def head_size(self) -> int:
        """D."""
        return int(self.q.columns.shape[1])


def is_candidate(analysis: Analysis, node: gs.Node) -> bool:
    """Whether the node is an Attention operator, or a Softmax over [..., S, S], or over sizes that nobody knows."""
    if is_standard(node, "Attention"):
        return True
    if not is_standard(node, "Softmax"):
        return False
    shape = analysis[node.inputs[0]].shape
    return shape is None or (len(shape) >= 3 and not shape[-1].atoms() <= {"B", "T"})


def match(analysis: Analysis, node: gs.Node, rows: Rows) -> Attention:
    """Checks the attention around a candidate; `rows`: of the tables that inputs choose from. Raises NoMatch."""
    if is_standard(node, "Attention"):
        return _match_operator(analysis, node, rows)
    name = node_name(node)
    rank = analysis[node.inputs[0]].rank
    if int(node.attrs.get("axis", -1)) not in (-1, (rank or 0) - 1):
        raise NoMatch(f"Softmax '{name}' is not over the last axis")
    product, scale, uses = _scores(analysis, node)
    readers = _weights_readers(node.outputs[0])
    if len(readers) != 1:
        raise NoMatch(f"the weights of Softmax '{name}' are read by {len(readers)} MatMuls instead of one")
    q = trace_heads(analysis, product.inputs[0], "Q")
    k = trace_heads(analysis, product.inputs[1], "K", transposed=True)
    v = trace_heads(analysis, readers[0].inputs[1], "V")
    _check_heads(q, k, v)
    scores = _four_axes(analysis[product.outputs[0]].shape, q)
    if analysis[product.outputs[0]].rank == 3:
        uses = [_with_heads(use, q) for use in uses]
    mask = prove(uses, scores, name, rows)
    context = follow_context(analysis, readers[0].outputs[0], *q.columns.shape, by_head=q.by_head)
    return Attention(name, q, k, v, scale * q.factor * k.factor, mask, context)


def _check_heads(q: HeadsSource, k: HeadsSource, v: HeadsSource) -> None:
    shapes = [item.columns.shape for item in (q, k, v)]
    if len(set(shapes)) != 1:
        text = ", ".join(f"{heads} x {size}" for heads, size in shapes)
        raise NoMatch(f"Q, K and V have different heads (heads x size: {text}); PadfreeAttention needs equal ones")
    if len({item.by_head for item in (q, k, v)}) != 1:
        raise NoMatch("Q, K and V have batch and heads merged in different orders")
    if v.factor != 1.0:
        raise NoMatch(f"V is multiplied by {v.factor}")


def _four_axes(shape: Shape | None, q: HeadsSource) -> Shape:
    """[B,H,S,S]; the shape of the scores must be that, or [B*H,S,S]."""
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


def _scores(analysis: Analysis, softmax: gs.Node) -> tuple[gs.Node, float, list[MaskUse]]:
    """From the Softmax back to Q K^T: the MatMul, the factor and the masks on the way."""
    factor, uses, current = 1.0, list[MaskUse](), softmax.inputs[0]
    while True:
        node = producer(current)
        if node is None:
            raise NoMatch(f"the scores of '{node_name(softmax)}' are no product of Q and K: they are an input")
        if is_standard(node, "MatMul"):
            return node, factor, uses
        scaled = scale_of(analysis, current)
        if scaled is not None:
            current, part = scaled
            factor *= part
            if factor <= 0:
                raise NoMatch(f"'{node_name(node)}' multiplies the scores by {part}")
        elif is_standard(node, "Add"):
            position = _mask_position(analysis, node)
            uses.append(MaskUse(analysis[node.inputs[position]], "add", factor))
            current = node.inputs[1 - position]
        elif is_standard(node, "Where"):
            use, current = _selection(analysis, node, factor)
            uses.append(use)
        elif is_standard(node, "Cast"):
            current = node.inputs[0]
        else:
            raise NoMatch(f"the scores go through '{node_name(node)}' ({node.op}) between Q K^T and the Softmax")


def _mask_position(analysis: Analysis, node: gs.Node) -> int:
    """Which operand of an Add is the mask."""
    for position in (0, 1):
        if analysis[node.inputs[position]].expr is not None and analysis[node.inputs[1 - position]].expr is None:
            return position
    # Neither is understood: the one that no MatMul makes is called the mask, and refused with its reason.
    for position in (1, 0):
        if made_by(node.inputs[position], "MatMul") is None and analysis[node.inputs[position]].rank is not None:
            other = node.inputs[1 - position]
            if made_by(other, "MatMul") is not None or scale_of(analysis, other) is not None:
                return position
    raise NoMatch(f"'{node_name(node)}' (Add) adds two tensors of which neither is a mask")


def _selection(analysis: Analysis, node: gs.Node, factor: float) -> tuple[MaskUse, gs.Tensor]:
    condition = analysis[node.inputs[0]]
    for position, keeps in ((2, True), (1, False)):
        value = analysis[node.inputs[position]].scalar()
        if value is not None:
            return MaskUse(condition, "select", factor, keeps, value), node.inputs[3 - position]
    raise NoMatch(f"'{node_name(node)}' (Where) chooses between two tensors instead of a tensor and a number")


def _weights_readers(weights: gs.Tensor) -> list[gs.Node]:
    """The MatMuls that multiply the attention weights with V, through casts and guards against NaN."""
    found = []
    for node in weights.outputs:
        if is_standard(node, "MatMul") and node.inputs[0] is weights:
            found.append(node)
        elif is_standard(node, "Cast", "Identity", "Dropout") or _is_guard(node, weights):
            found += _weights_readers(node.outputs[0])
    return found


def _is_guard(node: gs.Node, weights: gs.Tensor) -> bool:
    """Where(IsNaN(weights), 0, weights): it acts on rows without any kept key, which no token has."""
    if not is_standard(node, "Where") or node.inputs[2] is not weights:
        return False
    test = made_by(node.inputs[0], "IsNaN")
    return test is not None and test.inputs[0] is weights


def _match_operator(analysis: Analysis, node: gs.Node, rows: Rows) -> Attention:
    """The Attention operator of opset 23."""
    name = node_name(node)
    if int(node.attrs.get("is_causal", 0)):
        raise NoMatch(f"Attention '{name}' is causal (is_causal=1)")
    if float(node.attrs.get("softcap", 0.0)) != 0.0:
        raise NoMatch(f"Attention '{name}' caps its scores (softcap)")
    if any(argument(node, position) is not None for position in (4, 5, 6)):
        raise NoMatch(f"Attention '{name}' reads past keys, which an encoder does not have")
    if any(tensor.outputs for tensor in node.outputs[1:]):
        raise NoMatch(f"Attention '{name}' gives out its keys or scores")
    tensors = node.inputs[:3]
    if analysis[tensors[0]].rank == 3:
        heads = int(node.attrs.get("q_num_heads", 0))
        if heads == 0 or int(node.attrs.get("kv_num_heads", 0)) != heads:
            raise NoMatch(f"Attention '{name}' has other numbers of heads for Q and for K and V")
        q, k, v = (_whole(analysis, tensor, heads, what) for tensor, what in zip(tensors, "QKV", strict=True))
    else:
        q, k, v = (trace_heads(analysis, tensor, what) for tensor, what in zip(tensors, "QKV", strict=True))
    _check_heads(q, k, v)
    heads, size = q.columns.shape
    scale = float(node.attrs.get("scale", 1.0 / math.sqrt(size)))
    mask = argument(node, 3)
    uses = list[MaskUse]()
    if mask is not None:
        facts = analysis[mask]
        uses.append(MaskUse(facts, "select") if facts.dtype == "bool" else MaskUse(facts, "add"))
    batch, length = Poly.atom("B"), Poly.atom("S")
    source = prove(uses, (batch, Poly.of(int(heads)), length, length), name, rows)
    context = node.outputs[0]
    if analysis[tensors[0]].rank == 4:
        context = follow_context(analysis, context, heads, size)
    return Attention(name, q, k, v, scale * q.factor * k.factor, source, context)


def _whole(analysis: Analysis, tensor: gs.Tensor, heads: int, what: str) -> HeadsSource:
    shape = analysis[tensor].shape
    width = None if shape is None else shape[2].constant()
    if shape is None or width is None or shape[:2] != (Poly.atom("B"), Poly.atom("S")) or width % heads:
        raise NoMatch(f"{what} is no [batch, sequence, heads * size] tensor")
    return HeadsSource(tensor, np.arange(width).reshape(heads, width // heads), 1.0)
