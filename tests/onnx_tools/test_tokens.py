# SPDX-License-Identifier: Apache-2.0
"""Layers on [B*S,E], [S,B,E] and their like: everything is packed, as it is where they work on [B,S,E]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto
from padfree.onnx_tools import rewrite

from .agreement import assert_agree
from .encoder import HEADS, HIDDEN, VOCABULARY, EncoderBuilder, one_layer
from .test_rewrite import INTERFACES, TOKENS, with_output

SIZE = HIDDEN // HEADS
both = pytest.mark.parametrize("interface", INTERFACES)


def sizes(b: EncoderBuilder, *parts: str | int) -> str:
    """A shape of numbers, of "B" and "S", and of products of these with numbers, as in "B*2"."""
    shape = b.op("Shape", "input_ids")
    found = []
    for part in parts:
        total = None
        for factor in str(part).split("*"):
            known = factor in "BS"
            size = b.op("Slice", shape, b.axes("BS".index(factor)), b.axes("BS".index(factor) + 1)) if known else None
            size = size or b.axes(int(factor))
            total = size if total is None else b.op("Mul", total, size)
        found.append(str(total))
    return b.op("Concat", *found, axis=0)


def shaped(b: EncoderBuilder, x: str, *parts: str | int) -> str:
    return b.op("Reshape", x, sizes(b, *parts))


def turned(b: EncoderBuilder, x: str, *perm: int) -> str:
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
    """The whole layer on [B*S,E], heads split from there."""
    rows = shaped(b, x, "B*S", HIDDEN)
    heads = [turned(b, shaped(b, gemm(b, rows, transB=1), "B", "S", HEADS, SIZE), 0, 2, 1, 3) for _ in range(3)]
    context = softmax(b, heads[0], turned(b, heads[1], 0, 1, 3, 2), heads[2], b.padding_mask())
    joined = shaped(b, turned(b, context, 0, 2, 1, 3), "B*S", HIDDEN)
    hidden = b.norm(b.op("Add", gemm(b, joined), rows))
    return shaped(b, feed_forward(b, hidden, hidden), "B", "S", HIDDEN)


def flat_with_one(b: EncoderBuilder, x: str) -> str:
    """[1,B*S,E], three projections in one product, split as Conv1D's results are."""
    rows = b.op("Reshape", x, b.axes(1, -1, HIDDEN))
    joined = b.op("Add", b.op("MatMul", rows, b.weight(HIDDEN, 3 * HIDDEN)), b.weight(1, 1, 3 * HIDDEN))
    parts = [
        b.op("Slice", joined, b.axes(i * HIDDEN), b.axes((i + 1) * HIDDEN), b.axes(2)) for i in range(3)
    ]  # fmt: skip
    heads = [turned(b, shaped(b, part, "B", "S", HEADS, SIZE), 0, 2, 1, 3) for part in parts]
    context = softmax(b, heads[0], turned(b, heads[1], 0, 1, 3, 2), heads[2], b.padding_mask())
    back = shaped(b, turned(b, context, 0, 2, 1, 3), 1, "B*S", HIDDEN)
    scaled = b.op("Mul", back, b.constant(np.linspace(0.5, 1.5, HIDDEN).reshape(1, 1, HIDDEN)))
    return shaped(b, b.norm(b.op("Add", scaled, rows)), "B", "S", HIDDEN)


def merged_mask(b: EncoderBuilder, by_head: bool) -> str:
    """[B*H,1,S], or [H*B,1,S]."""
    if not by_head:
        wide = b.op("Expand", b.padding_mask(), b.axes(1, HEADS, 1, 1))
        return shaped(b, wide, f"B*{HEADS}", 1, "S")
    row = turned(b, b.padding_mask(), 1, 0, 2, 3)
    return shaped(b, b.op("Expand", row, b.axes(HEADS, 1, 1, 1)), f"{HEADS}*B", 1, "S")


def length_first(b: EncoderBuilder, x: str) -> str:
    """[S,B,E] and [B*H,S,D], as nn.MultiheadAttention has them."""
    rows = turned(b, x, 1, 0, 2)
    joined = b.linear(rows, HIDDEN, 3 * HIDDEN)
    parts = [
        b.op("Gather", turned(b, shaped(b, joined, "S", "B", 3, HIDDEN), 2, 0, 1, 3), b.constant(i, np.int64), axis=0)
        for i in range(3)
    ]
    q, k, v = (turned(b, shaped(b, part, "S", f"B*{HEADS}", SIZE), 1, 0, 2) for part in parts)
    scores = b.op("Mul", b.op("MatMul", q, turned(b, k, 0, 2, 1)), b.constant(0.35))
    weights = b.op("Softmax", b.op("Add", scores, merged_mask(b, False)), axis=-1)
    context = shaped(b, turned(b, b.op("MatMul", weights, v), 1, 0, 2), "S*B", HIDDEN)
    hidden = b.norm(b.op("Add", shaped(b, gemm(b, context, transB=1), "S", "B", HIDDEN), rows))
    return turned(b, b.norm(b.op("Tanh", hidden)), 1, 0, 2)


def heads_before_batch(b: EncoderBuilder, x: str) -> str:
    """[H*B,S,D], as the first implementations of the Transformer in PyTorch have it."""
    parts = []
    for _ in range(3):
        split = shaped(b, b.linear(x, HIDDEN, HIDDEN), "B", "S", HEADS, SIZE)
        parts.append(shaped(b, turned(b, split, 2, 0, 1, 3), f"{HEADS}*B", "S", SIZE))
    q, k, v = parts
    scores = b.op("Mul", b.op("MatMul", q, turned(b, k, 0, 2, 1)), b.constant(0.35))
    weights = b.op("Softmax", b.op("Add", scores, merged_mask(b, True)), axis=-1)
    context = shaped(b, b.op("MatMul", weights, v), HEADS, "B", "S", SIZE)
    joined = shaped(b, turned(b, context, 1, 2, 0, 3), "B", "S", HIDDEN)
    return b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x))


def one_head(b: EncoderBuilder, x: str) -> str:
    """Scores [B,S,S] of one head, with a mask [B,1,S]."""
    q, k, v = (b.linear(x, HIDDEN, HIDDEN) for _ in range(3))
    mask = b.op("Squeeze", b.padding_mask(), b.axes(1))
    scores = b.op("Mul", b.op("MatMul", q, turned(b, k, 0, 2, 1)), b.constant(0.25))
    context = b.op("MatMul", b.op("Softmax", b.op("Add", scores, mask), axis=-1), v)
    return b.norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x))


FORMS: dict[str, Callable[[EncoderBuilder, str], str]] = {
    "flat": flat,
    "flat with one": flat_with_one,
    "length first": length_first,
    "heads before batch": heads_before_batch,
    "one head": one_head,
}


@both
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, interface: str) -> None:
    builder, hidden = one_layer()
    model = with_output(FORMS[form](builder, FORMS[form](builder, hidden)), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 3
    assert_agree(model, result)


@both
def test_flat_ids(interface: str) -> None:
    """Rows of a table by ids [B*S], scaled where the mask [B*S,1] keeps a token."""
    builder, hidden = one_layer()
    ids = builder.op("Reshape", "input_ids", builder.axes(-1))
    rows = builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), ids)
    mask = builder.op("Cast", builder.op("Reshape", "attention_mask", builder.axes(-1, 1)), to=TensorProto.FLOAT)
    rows = builder.op("Mul", rows, builder.op("Mul", mask, builder.constant(0.5)))
    model = with_output(builder.op("Add", hidden, shaped(builder, rows, "B", "S", HIDDEN)), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)


def beside_tokens(b: EncoderBuilder, x: str) -> str:
    """Norms, sums, parts and joins on [S*B,E]."""
    rows = shaped(b, turned(b, x, 1, 0, 2), "S*B", HIDDEN)
    low, high = (b.op("Slice", rows, b.axes(i), b.axes(i + HIDDEN // 2), b.axes(1)) for i in (0, HIDDEN // 2))
    swapped = b.op("Softmax", b.op("Concat", high, b.op("Neg", low), axis=1), axis=-1)
    total = b.op("ReduceSum", rows, b.axes(1), keepdims=0)
    spread = b.op("Mul", swapped, b.op("Unsqueeze", total, b.axes(1)))
    picked = b.op("Gather", spread, b.axes(*range(HIDDEN)[::-1]), axis=1)
    return turned(b, shaped(b, picked, "S", "B", HIDDEN), 1, 0, 2)


def wide_and_narrow(b: EncoderBuilder, x: str) -> str:
    """A column [S,B,1] times a row, and a split along the width."""
    turn = turned(b, x, 1, 0, 2)
    column = b.op("ReduceMax", turn, axes=[-1], keepdims=1)
    grown = b.op("Mul", column, b.constant(np.linspace(0.5, 1.5, HIDDEN)))
    parts = [f"part{len(b.nodes)}", f"other{len(b.nodes)}"]
    b.op("Split", grown, axis=2, output=parts[0])
    b.nodes[-1].output.append(parts[1])
    joined = b.op("Concat", parts[1], parts[0], axis=-1)
    return turned(b, b.op("MatMul", joined, b.weight(HIDDEN, HIDDEN)), 1, 0, 2)


@both
@pytest.mark.parametrize("work", [beside_tokens, wide_and_narrow])
def test_work_beside_the_tokens(work: Callable[[EncoderBuilder, str], str], interface: str) -> None:
    builder, hidden = one_layer()
    model = with_output(work(builder, hidden), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)


@both
def test_what_mixes_rows_stays(interface: str) -> None:
    """Sums of masked rows along [B*S] go from one sequence into the next; a product before them is packed."""
    builder, hidden = one_layer()
    rows = builder.op("Tanh", builder.op("Gemm", shaped(builder, hidden, "B*S", HIDDEN), builder.weight(HIDDEN, 4)))
    mask = builder.op("Cast", builder.op("Reshape", "attention_mask", builder.axes(-1, 1)), to=TensorProto.FLOAT)
    sums = builder.op("CumSum", builder.op("Mul", rows, mask), builder.constant(0, np.int64))
    model = with_output(shaped(builder, sums, "B", "S", 4), builder, ["batch", "sequence", 4])
    result = rewrite(model, interface=interface)
    assert any("CumSum" in item.reason for item in result.report.islands)
    assert not any("MatMul" in item.reason for item in result.report.islands)
    assert_agree(model, result)
