# SPDX-License-Identifier: Apache-2.0
"""One vector [B,E] per sequence, from tokens [B,S,E], to which masked slots do not contribute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from tests.support.encoder import HIDDEN, EncoderBuilder

from .position_forms import length, steps
from .token_forms import transpose

Form = Callable[[EncoderBuilder, str], str]


def mask(b: EncoderBuilder) -> str:
    """float [B,S]."""
    return b.op("Cast", "attention_mask", to=TensorProto.FLOAT)


def column(b: EncoderBuilder) -> str:
    """float [B,S,1]."""
    return b.op("Unsqueeze", mask(b), b.axes(2))


def count(b: EncoderBuilder) -> str:
    """float [B,1]."""
    return b.op("ReduceSum", mask(b), b.axes(1), keepdims=1)


def total(b: EncoderBuilder, x: str, weights: str) -> str:
    """[B,E]."""
    return b.op("ReduceSum", b.op("Mul", x, weights), b.axes(1), keepdims=0)


def score(b: EncoderBuilder, x: str, outputs: int = 1) -> str:
    """[B,S,outputs]."""
    return b.linear(x, HIDDEN, outputs)


def by_matmul(b: EncoderBuilder, x: str) -> str:
    """[B,1,S] times [B,S,E]."""
    row = b.op("Unsqueeze", mask(b), b.axes(1))
    return b.op("Div", b.op("Squeeze", b.op("MatMul", row, x), b.axes(1)), count(b))


def by_matmul_from_the_right(b: EncoderBuilder, x: str) -> str:
    """[B,E,S] times [B,S,1]."""
    summed = b.op("Squeeze", b.op("MatMul", transpose(b, x, 0, 2, 1), column(b)), b.axes(2))
    return b.op("Div", summed, b.op("Clip", count(b), b.constant(1e-9)))


def by_einsum(b: EncoderBuilder, x: str) -> str:
    return b.op("Div", b.op("Einsum", mask(b), x, equation="bs,bse->be"), count(b))


def by_square_root(b: EncoderBuilder, x: str) -> str:
    return b.op("Div", total(b, x, column(b)), b.op("Sqrt", count(b)))


def plain_sum(b: EncoderBuilder, x: str) -> str:
    return total(b, x, column(b))


def by_position(b: EncoderBuilder, x: str) -> str:
    """Weights 1, 2, ... as in sentence-transformers' weightedmean, expanded over E."""
    positions = b.op("Add", b.op("Cast", steps(b), to=TensorProto.FLOAT), b.constant(1.0))
    positions = b.op("Unsqueeze", positions, b.axes(0, 2))
    shape = b.op("Concat", b.op("Shape", "input_ids"), b.axes(HIDDEN), axis=0)
    weights = b.op("Mul", b.op("Expand", positions, shape), b.op("Expand", column(b), shape))
    summed = b.op("ReduceSum", weights, b.axes(1), keepdims=0)
    return b.op("Div", total(b, x, weights), b.op("Clip", summed, b.constant(1e-9)))


def without_special(b: EncoderBuilder, x: str) -> str:
    """Tokens with one particular id do not contribute."""
    special = b.op("Equal", "input_ids", b.constant(3, np.int64))
    kept = b.op("Mul", mask(b), b.op("Cast", b.op("Not", special), to=TensorProto.FLOAT))
    wide = b.op("Unsqueeze", kept, b.axes(2))
    summed = b.op("ReduceSum", kept, b.axes(1), keepdims=1)
    return b.op("Div", total(b, x, wide), b.op("Clip", summed, b.constant(1e-9)))


def by_attention(b: EncoderBuilder, x: str) -> str:
    """A softmax over the tokens, whose scores are filled where masked."""
    row = b.op("Squeeze", score(b, x), b.axes(2))
    masked = b.op("Equal", "attention_mask", b.constant(0, np.int64))
    weights = b.op("Softmax", b.op("Where", masked, b.constant(-10000.0), row), axis=-1)
    return total(b, x, b.op("Unsqueeze", weights, b.axes(2)))


def by_vector(b: EncoderBuilder, x: str) -> str:
    """Scores by one vector, masked by minus infinity."""
    row = b.op("MatMul", x, b.weight(HIDDEN))
    masked = b.op("Equal", "attention_mask", b.constant(0, np.int64))
    weights = b.op("Softmax", b.op("Where", masked, b.constant(-np.inf), row), axis=1)
    return b.op("Einsum", weights, x, equation="bs,bse->be")


def by_whole_numbers(b: EncoderBuilder, x: str) -> str:
    """The tokens are counted in int64."""
    row = b.op("Unsqueeze", mask(b), b.axes(1))
    counted = b.op("ReduceSum", "attention_mask", b.axes(1), keepdims=1)
    return b.op("Div", b.op("Squeeze", b.op("MatMul", row, x), b.axes(1)), b.op("Cast", counted, to=TensorProto.FLOAT))


def by_several_heads(b: EncoderBuilder, x: str) -> str:
    """The same with a bias on scores [B,S,4], one head per quarter of E."""
    bias = b.op("Mul", b.op("Sub", b.constant(1.0), column(b)), b.constant(-1e9))
    weights = b.op("Softmax", b.op("Add", score(b, x, 4), bias), axis=1)
    parts = b.op("Reshape", x, b.axes(0, 0, 4, HIDDEN // 4))
    summed = total(b, parts, b.op("Unsqueeze", weights, b.axes(3)))
    return b.op("Reshape", summed, b.axes(0, HIDDEN))


def by_exponentials(b: EncoderBuilder, x: str) -> str:
    """The softmax written out, without a maximum, masked by a product."""
    powers = b.op("Mul", b.op("Exp", score(b, x)), column(b))
    weights = b.op("Div", powers, b.op("ReduceSum", powers, b.axes(1), keepdims=1))
    return total(b, weights, x)


def splade(b: EncoderBuilder, x: str) -> str:
    """max(log(1 + relu(x)) * mask)."""
    logs = b.op("Log", b.op("Add", b.constant(1.0), b.op("Relu", x)))
    return b.op("ReduceMax", b.op("Mul", logs, column(b)), axes=[1], keepdims=0)


def splade_masked_first(b: EncoderBuilder, x: str) -> str:
    masked = b.op("Mul", b.op("Relu", x), column(b))
    return b.op("ReduceMax", b.op("Log", b.op("Add", masked, b.constant(1.0))), axes=[1], keepdims=0)


def maximum_of_sums(b: EncoderBuilder, x: str) -> str:
    bias = b.op("Mul", b.op("Sub", b.constant(1.0), column(b)), b.constant(-1e9))
    return b.op("ReduceMax", b.op("Add", x, bias), axes=[1], keepdims=0)


def length_of_vectors(b: EncoderBuilder, x: str) -> str:
    return b.op("ReduceL2", b.op("Mul", x, column(b)), axes=[1], keepdims=0)


def sum_of_squares(b: EncoderBuilder, x: str) -> str:
    return b.op(
        "ReduceSumSquare",
        b.op("Where", b.op("Cast", column(b), to=TensorProto.BOOL), x, b.constant(0.0)),
        axes=[1],
        keepdims=0,
    )


def length_first(b: EncoderBuilder, x: str) -> str:
    """The sum over the first axis of [S,B,E]."""
    rows = b.op("Mul", transpose(b, x, 1, 0, 2), b.op("Unsqueeze", transpose(b, mask(b), 1, 0), b.axes(2)))
    return b.op("Div", b.op("ReduceSum", rows, b.axes(0), keepdims=0), count(b))


def centre(b: EncoderBuilder, x: str) -> str:
    """The deviation from the mean: a sequence's row combined with its tokens."""
    mean = b.op("Unsqueeze", by_matmul(b, x), b.axes(1))
    return total(b, b.op("Abs", b.op("Sub", x, mean)), column(b))


def first_by_mask(b: EncoderBuilder, x: str) -> str:
    """As in sentence-transformers' CLS pooling: the first slot that the mask keeps."""
    position = b.op("ArgMax", "attention_mask", axis=1, keepdims=0)
    index = b.op("Expand", b.op("Unsqueeze", position, b.axes(1, 2)), b.axes(1, 1, HIDDEN))
    return b.op("Squeeze", b.op("GatherElements", x, index, axis=1), b.axes(1))


def last_by_count(b: EncoderBuilder, x: str) -> str:
    index = b.op("Sub", b.op("ReduceSum", "attention_mask", b.axes(1), keepdims=0), b.constant(1, np.int64))
    return b.op("GatherND", x, b.op("Unsqueeze", index, b.axes(1)), batch_dims=1)


def last_by_pairs(b: EncoderBuilder, x: str) -> str:
    """x[arange(B), sum(mask) - 1]."""
    rows = b.op(
        "Range", b.constant(0, np.int64), b.op("Squeeze", b.op("Shape", "input_ids", end=1)), b.constant(1, np.int64)
    )
    index = b.op("Sub", b.op("ReduceSum", "attention_mask", b.axes(1), keepdims=0), b.constant(1, np.int64))
    pairs = b.op("Concat", b.op("Unsqueeze", rows, b.axes(1)), b.op("Unsqueeze", index, b.axes(1)), axis=1)
    return b.op("GatherND", x, pairs)


def last_of_rows(b: EncoderBuilder, x: str) -> str:
    """The same as older exporters write it: from rows of [B*S,E]."""
    rows = b.op(
        "Range", b.constant(0, np.int64), b.op("Squeeze", b.op("Shape", "input_ids", end=1)), b.constant(1, np.int64)
    )
    index = b.op("Sub", b.op("ReduceSum", "attention_mask", b.axes(1), keepdims=0), b.constant(1, np.int64))
    index = b.op("Add", index, b.op("Mul", rows, length(b)))
    return b.op("Gather", b.op("Reshape", x, b.axes(-1, HIDDEN)), index, axis=0)


def last_by_index(b: EncoderBuilder, x: str) -> str:
    """argmax(mask * arange(S))."""
    index = b.op("ArgMax", b.op("Mul", "attention_mask", steps(b)), axis=1, keepdims=1)
    return b.op("GatherND", x, index, batch_dims=1)


def last_from_the_end(b: EncoderBuilder, x: str) -> str:
    """S - 1 - argmax(mask backwards)."""
    backwards = b.op("Slice", "attention_mask", b.axes(-1), b.axes(np.iinfo(np.int64).min), b.axes(1), b.axes(-1))
    index = b.op("Sub", b.op("Sub", length(b), b.op("ArgMax", backwards, axis=1, keepdims=1)), b.axes(1))
    return b.op("GatherND", x, index, batch_dims=1)


EXACT: dict[str, tuple[Form, str]] = {
    "product": (by_matmul, "mean"), "product from the right": (by_matmul_from_the_right, "mean"),
    "einsum": (by_einsum, "mean"), "square root": (by_square_root, "mean"), "sum": (plain_sum, "mean"),
    "position": (by_position, "mean"), "without special": (without_special, "mean"),
    "attention": (by_attention, "max"), "several heads": (by_several_heads, "max"),
    "vector": (by_vector, "max"),
    "whole numbers": (by_whole_numbers, "mean"),
    "exponentials": (by_exponentials, "mean"), "splade": (splade, "max"), "splade masked": (splade_masked_first, "max"),
    "maximum of sums": (maximum_of_sums, "max"), "length": (length_of_vectors, "mean"),
    "squares": (sum_of_squares, "mean"), "length first": (length_first, "mean"), "centred": (centre, "mean"),
    "first by mask": (first_by_mask, "first"), "last by place": (last_by_index, "last"),
    "last from the end": (last_from_the_end, "last"),
}  # fmt: skip
BY_COUNT: dict[str, Form] = {"last by count": last_by_count, "pairs": last_by_pairs, "rows": last_of_rows}
