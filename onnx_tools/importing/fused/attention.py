# SPDX-License-Identifier: Apache-2.0
"""Attention and MultiHeadAttention: softmax(Q K^T * scale + mask + bias) V; masks are lengths [B], [B,S] or [B,S,S]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from ...analysis.symbolic import Poly
from .expansion import Expansion, NotImportable


def attention(e: Expansion) -> gs.Tensor:
    """Attention: x [B,S,E] is projected to Q, K and V by one weight."""
    e.refuse_inputs(past=4, past_sequence_length=6)
    e.refuse_outputs(present=1)
    if e.integer("do_rotary"):
        raise NotImportable("it rotates Q and K itself (do_rotary=1)")
    weight = e.input(1, "weight")
    total = e.width(weight, "weight")
    sizes = e.node.attrs.get("qkv_hidden_sizes") or [total // 3] * 3
    if not isinstance(sizes, list) or len(sizes) != 3 or min(sizes) <= 0 or sum(sizes) != total:
        raise NotImportable(f"its weight has {total} columns, and Q, K and V have {sizes}")
    qkv = e.sum(e.op("MatMul", e.input(0, "tensor"), weight), e.optional_input(2))
    ends = np.cumsum(sizes)
    q, k, v = (e.columns(qkv, int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True))
    return _attend(e, q, k, v, mask=e.optional_input(3), bias=e.optional_input(5))


def multi_head_attention(e: Expansion) -> gs.Tensor:
    """MultiHeadAttention: Q, K and V [B,S,E] apart, K and V as one [B,S,H,2,D], or all three as one [B,S,H,3,D]."""
    e.refuse_inputs(past_key=6, past_value=7, past_sequence_length=8, cache_indirection=9)
    e.refuse_outputs(present_key=1, present_value=2, scores=3)
    parts = _parts(e)
    bias = e.optional_input(3)
    if bias is not None:
        ends = np.cumsum([e.width(part, "query, key or value") for part in parts])
        if not isinstance(bias, gs.Constant) or list(bias.shape) != [ends[-1]]:
            raise NotImportable(f"its bias '{bias.name}' is no constant [{ends[-1]}]")
        starts = [0, *ends[:-1]]
        parts = [
            e.op("Add", part, e.columns(bias, int(start), int(end)))
            for part, start, end in zip(parts, starts, ends, strict=True)
        ]
    return _attend(e, *parts, mask=e.optional_input(4), bias=e.optional_input(5))


def _parts(e: Expansion) -> list[gs.Tensor]:
    """Q, K and V as [B,S,E]."""
    query, key, value = e.input(0, "query"), e.optional_input(1), e.optional_input(2)
    if key is None:
        return _unpack(e, query, 3)
    rank = len(e.shape(key, "key"))
    if value is None and rank == 5:
        return [query, *_unpack(e, key, 2)]
    if value is None or rank != 3:
        raise NotImportable(f"its key has {rank} axes: keys of another sequence, which an encoder does not have")
    return [query, key, value]


def _unpack(e: Expansion, tensor: gs.Tensor, count: int) -> list[gs.Tensor]:
    """The tensors [B,S,H*D] that are packed in [B,S,H,count,D]."""
    shape = e.shape(tensor, "packed tensor")
    sizes = [size.constant() for size in shape[2:]]
    if len(shape) != 5 or sizes[0] is None or sizes[1] != count or sizes[2] is None:
        text = ", ".join(str(size) for size in shape)
        raise NotImportable(f"'{tensor.name}' is [{text}] instead of [batch, sequence, heads, {count}, size]")
    parts = (e.op("Gather", tensor, i, axis=3) for i in range(count))
    return [e.reshape(part, 0, 0, sizes[0] * sizes[2]) for part in parts]


def _attend(
    e: Expansion, q: gs.Tensor, k: gs.Tensor, v: gs.Tensor, *, mask: gs.Tensor | None, bias: gs.Tensor | None
) -> gs.Tensor:
    heads = e.integer("num_heads")
    widths = [e.width(part, "query, key or value") for part in (q, k, v)]
    if heads <= 0 or any(width % heads for width in widths):
        raise NotImportable(f"{heads} heads do not divide the widths {widths} of Q, K and V")
    scale = e.number("scale", 0.0) or 1.0 / math.sqrt(widths[0] // heads)
    parts = [e.reshape(part, 0, 0, heads, width // heads) for part, width in zip((q, k, v), widths, strict=True)]
    hidden = None if mask is None else _mask(e, mask, k)
    later = causal(e, q, k) if e.integer("unidirectional") else None
    return attend(e, parts, scale, widths[2], bias, hidden, later)


def attend(e: Expansion, parts: Sequence[gs.Tensor], scale: float, width: int, *biases: gs.Tensor | None) -> gs.Tensor:
    """softmax(Q K^T * scale + biases) V as [B,S,width], of Q, K and V [B,S,H,D]."""
    q, k, v = parts
    queries, values = (e.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
    scores = e.op("MatMul", queries, e.op("Transpose", k, perm=[0, 2, 3, 1]))
    scores = e.sum(e.op("Mul", scores, e.constant(scale)), *biases)
    context = e.op("MatMul", e.op("Softmax", scores, axis=-1), values)
    return e.reshape(e.op("Transpose", context, perm=[0, 2, 1, 3]), 0, 0, width)


def _mask(e: Expansion, mask: gs.Tensor, k: gs.Tensor) -> gs.Tensor:
    """The summand of the scores [B,H,S,S]: 0 for kept keys, mask_filter_value for the others."""
    shape, batch = e.shape(mask, "mask"), Poly.atom("B")
    if len(shape) == 1 and shape[0] == batch:
        is_token = within_lengths(e, mask, k)
    elif len(shape) in (2, 3):
        is_token = e.op("Greater", mask, e.constant(0, np.int32))
    elif len(shape) == 1:
        raise NotImportable(
            f"its mask '{mask.name}' has {shape[0]} elements: lengths [B] and masks [B,S] and [B,S,S] are known, "
            "starts and cumulative lengths are not"
        )
    else:
        raise NotImportable(f"its mask '{mask.name}' has {len(shape)} axes; lengths [B], [B,S] and [B,S,S] are known")
    bias = e.op("Where", is_token, 0.0, e.constant(e.number("mask_filter_value", -10000.0)))
    axes = [1] if len(shape) == 3 else [1, 2]
    return e.unsqueeze(bias, *axes)


def within_lengths(e: Expansion, lengths: gs.Tensor, k: gs.Tensor) -> gs.Tensor:
    """bool [B,S]: whether a key lies within the length of its sequence."""
    counts = e.op("Cast", e.reshape(lengths, -1, 1), to=TensorProto.INT64)
    return e.op("Less", e.reshape(e.slots(k, 1), 1, -1), counts)


def causal(e: Expansion, q: gs.Tensor, k: gs.Tensor) -> gs.Tensor:
    """[S,S]: 0 for keys up to the query, the lowest number for later ones."""
    later = e.op("Greater", e.reshape(e.slots(k, 1), 1, -1), e.reshape(e.slots(q, 1), -1, 1))
    return e.op("Where", later, e.constant(np.finfo(np.float32).min), 0.0)
