# SPDX-License-Identifier: Apache-2.0
"""Layers on [B*S,E], [S,B,E] and the like, with heads merged with the batch or not, and one of Einsums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.encoder import HEADS, HIDDEN, EncoderBuilder

SIZE = HIDDEN // HEADS


def sizes(b: EncoderBuilder, *parts: str | int) -> str:
    """A shape of numbers, "B" and "S", and products of these with numbers, as in "B*2"."""
    shape = b.op("Shape", "input_ids")
    results = []
    for part in parts:
        total = None
        for factor in str(part).split("*"):
            known = factor in "BS"
            size = b.op("Slice", shape, b.axes("BS".index(factor)), b.axes("BS".index(factor) + 1)) if known else None
            size = size or b.axes(int(factor))
            total = size if total is None else b.op("Mul", total, size)
        results.append(str(total))
    return b.op("Concat", *results, axis=0)


def reshape(b: EncoderBuilder, x: str, *parts: str | int) -> str:
    return b.op("Reshape", x, sizes(b, *parts))


def transpose(b: EncoderBuilder, x: str, *perm: int) -> str:
    return b.op("Transpose", x, perm=perm)


def gemm(b: EncoderBuilder, x: str, **attributes: float | int) -> str:
    """A linear layer on rows."""
    return b.op("Gemm", x, b.weight(HIDDEN, HIDDEN), b.weight(HIDDEN), **attributes)


def feed_forward(b: EncoderBuilder, rows: str, residual: str) -> str:
    hidden = b.op("Relu", gemm(b, rows, transB=1))
    return b.norm(b.op("Add", gemm(b, hidden, alpha=0.5, beta=2.0), residual))


def softmax(b: EncoderBuilder, q: str, k: str, v: str, mask: str) -> str:
    """Attention of q, k, v [...,S,D]."""
    scores = b.op("Mul", b.op("MatMul", q, k), b.constant(0.35))
    return b.op("MatMul", b.op("Softmax", b.op("Add", scores, mask), axis=-1), v)


def flat(b: EncoderBuilder, x: str) -> str:
    """The whole layer on [B*S,E], from which heads are split."""
    rows = reshape(b, x, "B*S", HIDDEN)
    heads = [transpose(b, reshape(b, gemm(b, rows, transB=1), "B", "S", HEADS, SIZE), 0, 2, 1, 3) for _ in range(3)]
    context = softmax(b, heads[0], transpose(b, heads[1], 0, 1, 3, 2), heads[2], b.padding_mask())
    joined = reshape(b, transpose(b, context, 0, 2, 1, 3), "B*S", HIDDEN)
    hidden = b.norm(b.op("Add", gemm(b, joined), rows))
    return reshape(b, feed_forward(b, hidden, hidden), "B", "S", HIDDEN)


def flat_with_one(b: EncoderBuilder, x: str) -> str:
    """[1,B*S,E], three projections in one product, split as Conv1D's results are."""
    rows = b.op("Reshape", x, b.axes(1, -1, HIDDEN))
    joined = b.op("Add", b.op("MatMul", rows, b.weight(HIDDEN, 3 * HIDDEN)), b.weight(1, 1, 3 * HIDDEN))
    parts = [
        b.op("Slice", joined, b.axes(i * HIDDEN), b.axes((i + 1) * HIDDEN), b.axes(2)) for i in range(3)
    ]  # fmt: skip
    heads = [transpose(b, reshape(b, part, "B", "S", HEADS, SIZE), 0, 2, 1, 3) for part in parts]
    context = softmax(b, heads[0], transpose(b, heads[1], 0, 1, 3, 2), heads[2], b.padding_mask())
    back = reshape(b, transpose(b, context, 0, 2, 1, 3), 1, "B*S", HIDDEN)
    scaled = b.op("Mul", back, b.constant(np.linspace(0.5, 1.5, HIDDEN).reshape(1, 1, HIDDEN)))
    return reshape(b, b.norm(b.op("Add", scaled, rows)), "B", "S", HIDDEN)


def merged_mask(b: EncoderBuilder, by_head: bool) -> str:
    """[B*H,1,S], or [H*B,1,S]."""
    if not by_head:
        wide = b.op("Expand", b.padding_mask(), b.axes(1, HEADS, 1, 1))
        return reshape(b, wide, f"B*{HEADS}", 1, "S")
    row = transpose(b, b.padding_mask(), 1, 0, 2, 3)
    return reshape(b, b.op("Expand", row, b.axes(HEADS, 1, 1, 1)), f"{HEADS}*B", 1, "S")


def length_first(b: EncoderBuilder, x: str) -> str:
    """[S,B,E] and [B*H,S,D], as in nn.MultiheadAttention."""
    rows = transpose(b, x, 1, 0, 2)
    joined = b.linear(rows, HIDDEN, 3 * HIDDEN)
    parts = [
        b.op(
            "Gather", transpose(b, reshape(b, joined, "S", "B", 3, HIDDEN), 2, 0, 1, 3), b.constant(i, np.int64), axis=0
        )
        for i in range(3)
    ]
    q, k, v = (transpose(b, reshape(b, part, "S", f"B*{HEADS}", SIZE), 1, 0, 2) for part in parts)
    scores = b.op("Mul", b.op("MatMul", q, transpose(b, k, 0, 2, 1)), b.constant(0.35))
    weights = b.op("Softmax", b.op("Add", scores, merged_mask(b, False)), axis=-1)
    context = reshape(b, transpose(b, b.op("MatMul", weights, v), 1, 0, 2), "S*B", HIDDEN)
    hidden = b.norm(b.op("Add", reshape(b, gemm(b, context, transB=1), "S", "B", HIDDEN), rows))
    return transpose(b, b.norm(b.op("Tanh", hidden)), 1, 0, 2)


def heads_before_batch(b: EncoderBuilder, x: str) -> str:
    """[H*B,S,D], as in the first implementations of the Transformer in PyTorch."""
    parts = []
    for _ in range(3):
        split = reshape(b, b.linear(x, HIDDEN, HIDDEN), "B", "S", HEADS, SIZE)
        parts.append(reshape(b, transpose(b, split, 2, 0, 1, 3), f"{HEADS}*B", "S", SIZE))
    q, k, v = parts
    scores = b.op("Mul", b.op("MatMul", q, transpose(b, k, 0, 2, 1)), b.constant(0.35))
    weights = b.op("Softmax", b.op("Add", scores, merged_mask(b, True)), axis=-1)
    context = reshape(b, b.op("MatMul", weights, v), HEADS, "B", "S", SIZE)
    joined = reshape(b, transpose(b, context, 1, 2, 0, 3), "B", "S", HIDDEN)
    return b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x))


def one_head(b: EncoderBuilder, x: str) -> str:
    """Scores [B,S,S] of one head, with a mask [B,1,S]."""
    q, k, v = (b.linear(x, HIDDEN, HIDDEN) for _ in range(3))
    mask = b.op("Squeeze", b.padding_mask(), b.axes(1))
    scores = b.op("Mul", b.op("MatMul", q, transpose(b, k, 0, 2, 1)), b.constant(0.25))
    context = b.op("MatMul", b.op("Softmax", b.op("Add", scores, mask), axis=-1), v)
    return b.norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x))


def einsums(b: EncoderBuilder, x: str) -> str:
    """Projections, scores and context as Einsum, on [B,S,H,D] throughout."""

    def einsum(equation: str, *inputs: str) -> str:
        return b.op("Einsum", *inputs, equation=equation)

    heads = [einsum("bse,ehd->bshd", x, b.weight(HIDDEN, HEADS, SIZE)) for _ in range(2)]
    rows = b.op("Add", einsum("bse,oe->bso", x, b.weight(HIDDEN, HIDDEN)), b.weight(HIDDEN))
    value = b.op("Reshape", rows, b.axes(0, 0, HEADS, SIZE))
    scores = b.op("Mul", einsum("bqhd,bkhd->bhqk", *heads), b.constant(0.35))
    weights = b.op("Softmax", b.op("Add", scores, b.padding_mask()), axis=-1)
    context = einsum("bhqk,bkhd->bqhd", weights, value)
    return b.norm(b.op("Add", einsum("bqhd,hde->bqe", context, b.weight(HEADS, SIZE, HIDDEN)), x))


FORMS: dict[str, Callable[[EncoderBuilder, str], str]] = {
    "einsums": einsums,
    "flat": flat,
    "flat with one": flat_with_one,
    "length first": length_first,
    "heads before batch": heads_before_batch,
    "one head": one_head,
}
