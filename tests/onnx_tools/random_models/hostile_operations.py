# SPDX-License-Identifier: Apache-2.0
"""Operations that a layout pass can get wrong: they move, merge or mix the batch, the sequence and the slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from tests.support.encoder import HEADS, HIDDEN

if TYPE_CHECKING:
    from .random_graphs import RandomGraph

SIZE = HIDDEN // HEADS
END = np.iinfo(np.int64).max


def _token_shape(b: RandomGraph, *order: int) -> str:
    """The shape of [B,S,E] with its axes in another order."""
    sizes = b.op("Concat", b.op("Shape", "input_ids"), b.axes(HIDDEN), axis=0)
    return b.op("Gather", sizes, b.axes(*order), axis=0)


def _flat_rows(b: RandomGraph, x: str, _: str) -> str:
    """A linear layer on [B*S,E]."""
    flat = b.op("Gemm", b.reshape(x, -1, HIDDEN), b.weight(HIDDEN, HIDDEN), b.weight(HIDDEN))
    return b.op("Reshape", flat, _token_shape(b, 0, 1, 2))


def _flat_sums(b: RandomGraph, x: str, _: str) -> str:
    """Running sums on [B*S,E], from one sequence into the next."""
    flat = b.op("CumSum", b.reshape(x, -1, HIDDEN), b.constant(0, np.int64))
    return b.op("Reshape", flat, _token_shape(b, 0, 1, 2))


def _flat_masked_sums(b: RandomGraph, x: str, y: str) -> str:
    return _flat_sums(b, b.op("Mul", x, b.mask()), y)


def _length_first(b: RandomGraph, x: str, _: str) -> str:
    """Work on [S,B,E]."""
    transposed = b.op("Tanh", b.op("Transpose", x, perm=[1, 0, 2]))
    return b.op("Transpose", transposed, perm=[1, 0, 2])


def _length_first_rows(b: RandomGraph, x: str, _: str) -> str:
    """A linear layer on [S*B,E]: the rows are in a different order than the tokens."""
    transposed = b.reshape(b.op("Transpose", x, perm=[1, 0, 2]), -1, HIDDEN)
    flat = b.op("Reshape", b.op("MatMul", transposed, b.weight(HIDDEN, HIDDEN)), _token_shape(b, 1, 0, 2))
    return b.op("Transpose", flat, perm=[1, 0, 2])


def _columns(b: RandomGraph, x: str, _: str) -> str:
    """Work on [B,E,S]."""
    transposed = b.op("Transpose", x, perm=[0, 2, 1])
    scaled = b.op("Mul", transposed, b.constant(np.linspace(0.5, 1.5, HIDDEN).reshape(HIDDEN, 1)))
    return b.op("Transpose", scaled, perm=[0, 2, 1])


def _scramble(b: RandomGraph, x: str, _: str) -> str:
    """[B,S,E] reinterpreted as [B,E,S]: every row gets parts of several tokens."""
    wrong = b.op("Tanh", b.op("Reshape", x, _token_shape(b, 0, 2, 1)))
    scaled = b.op("Mul", wrong, b.constant(np.linspace(0.5, 1.5, HIDDEN).reshape(HIDDEN, 1)))
    return b.op("Reshape", scaled, _token_shape(b, 0, 1, 2))


def _rename(b: RandomGraph, x: str, _: str) -> str:
    """[B,S,E] reinterpreted as [S,B,E], and added to itself in the right order."""
    return b.op("Add", x, b.op("Transpose", b.op("Reshape", x, _token_shape(b, 1, 0, 2)), perm=[1, 0, 2]))


def _extra_token(b: RandomGraph, x: str, _: str) -> str:
    """A constant token is put before all others, which are then shifted back."""
    batch = b.op("Concat", b.op("Shape", "input_ids", end=1), b.axes(1, HIDDEN), axis=0)
    token = b.op("Expand", b.weight(1, 1, HIDDEN), batch)
    longer = b.op("Concat", token, x, axis=1)
    return b.op("Slice", b.op("Tanh", longer), b.axes(1), b.axes(END), b.axes(1))


def _shift(b: RandomGraph, x: str, _: str) -> str:
    """Every token reads its left neighbour, and the first one zeros."""
    batch = b.op("Concat", b.op("Shape", "input_ids", end=1), b.axes(1, HIDDEN), axis=0)
    longer = b.op("Concat", b.op("Expand", b.constant(np.zeros((1, 1, HIDDEN))), batch), x, axis=1)
    return b.op("Slice", longer, b.axes(0), b.axes(-1), b.axes(1))


def _roll(b: RandomGraph, x: str, _: str) -> str:
    """Every token reads its right neighbour, and the last slot the first one."""
    b.reads_first = True
    rest = b.op("Slice", x, b.axes(1), b.axes(END), b.axes(1))
    return b.op("Concat", rest, b.op("Slice", x, b.axes(0), b.axes(1), b.axes(1)), axis=1)


def _reverse(b: RandomGraph, x: str, y: str) -> str:
    backwards = b.op("Slice", b.op("Mul", x, b.mask()), b.axes(-1), b.axes(-END), b.axes(1), b.axes(-1))
    return b.op("Add", y, b.op("ReduceMax", backwards, axes=[1], keepdims=1))


def _last_kept(b: RandomGraph, x: str, y: str) -> str:
    """The token at the number of kept ones minus one: the last of a right-padded sequence."""
    b.reads_first = True
    count = b.op("ReduceSum", "attention_mask", b.axes(1), keepdims=1)
    position = b.op("Max", b.op("Sub", count, b.constant(1, np.int64)), b.constant(0, np.int64))
    index = b.op("Expand", b.op("Unsqueeze", position, b.axes(2)), b.constant([1, 1, HIDDEN], np.int64))
    return b.op("Add", y, b.op("GatherElements", x, index, axis=1))


def _reorder(b: RandomGraph, x: str, _: str) -> str:
    """Gathered along the sequence by its own positions, counted from the end."""
    positions = b.op("Squeeze", b.op("Cast", b.positions(), to=TensorProto.INT64), b.axes(0, 2))
    return b.op("Gather", x, b.op("Sub", b.constant(-1, np.int64), positions), axis=1)


def _in_order(b: RandomGraph, x: str, _: str) -> str:
    """Gathered along the sequence by its own positions."""
    positions = b.op("Squeeze", b.op("Cast", b.positions(), to=TensorProto.INT64), b.axes(0, 2))
    return b.op("Gather", x, positions, axis=1)


def _first_to_all(b: RandomGraph, x: str, _: str) -> str:
    b.reads_first = True
    first = b.op("Unsqueeze", b.op("Gather", x, b.constant(0, np.int64), axis=1), b.axes(1))
    return b.op("Add", x, first)


def _batch_sum(b: RandomGraph, x: str, y: str) -> str:
    """Every sequence reads the same slots of the others."""
    return b.op("Add", y, b.op("ReduceMean", b.op("Mul", x, b.mask()), axes=[0], keepdims=1))


def _first_sequence(b: RandomGraph, x: str, y: str) -> str:
    """Every sequence reads the same slots of the first one."""
    return b.op("Add", y, b.op("Slice", b.op("Mul", x, b.mask()), b.axes(0), b.axes(1), b.axes(0)))


def _double(b: RandomGraph, x: str, y: str) -> str:
    """Two copies along the sequence, processed and added."""
    longer = b.op("Tanh", b.op("Concat", x, y, axis=1))
    parts = [b.op("Shape", "input_ids", start=1), b.axes(END)]
    length = parts[0]
    first = b.op("Slice", longer, b.axes(0), length, b.axes(1))
    return b.op("Add", first, b.op("Slice", longer, length, parts[1], b.axes(1)))


def _convolution(b: RandomGraph, x: str, _: str) -> str:
    masked = b.op("Transpose", b.op("Mul", x, b.mask()), perm=[0, 2, 1])
    return b.op("Transpose", b.op("Conv", masked, b.weight(HIDDEN, HIDDEN, 3), pads=[1, 1]), perm=[0, 2, 1])


def _similarity(b: RandomGraph, x: str, y: str) -> str:
    """Attention with no mask, between masked tokens: each token weighs all of them, padding with equal scores."""
    masked = b.op("Mul", x, b.mask())
    scores = b.op("MatMul", masked, b.op("Transpose", masked, perm=[0, 2, 1]))
    return b.op("Add", y, b.op("MatMul", b.op("Softmax", scores, axis=-1), masked))


def _dot_products(b: RandomGraph, x: str, y: str) -> str:
    """Products of masked tokens without a Softmax: padding does not contribute."""
    masked = b.op("Mul", x, b.mask())
    scores = b.op("Tanh", b.op("MatMul", masked, b.op("Transpose", masked, perm=[0, 2, 1])))
    return b.op("Add", y, b.op("MatMul", scores, masked))


def _distances(b: RandomGraph) -> str:
    """float [S,S]: query position minus key position."""
    column, row = (b.op("Squeeze", b.positions(), b.axes(axis)) for axis in (0, 2))
    return b.op("Sub", column, row)


def _causal(b: RandomGraph, x: str, _: str) -> str:
    return b.layer(x, b.op("Add", b.padding_mask(), b.causal_mask()))


def _window(b: RandomGraph, x: str, _: str) -> str:
    far = b.op("Greater", b.op("Abs", _distances(b)), b.constant(2.0))
    return b.layer(x, b.op("Add", b.padding_mask(), b.op("Where", far, b.constant(-10000.0), b.constant(0.0))))


def _blocks(b: RandomGraph, x: str, _: str) -> str:
    """Tokens see only their own block of three slots."""
    block = b.op("Floor", b.op("Div", b.positions(), b.constant(3.0)))
    column, row = (b.op("Squeeze", block, b.axes(axis)) for axis in (0, 2))
    other = b.op("Not", b.op("Equal", column, row))
    return b.layer(x, b.op("Add", b.padding_mask(), b.op("Where", other, b.constant(-10000.0), b.constant(0.0))))


def _by_head(b: RandomGraph, x: str, _: str) -> str:
    """A bias by distance with a slope for each head."""
    slopes = b.constant(np.linspace(0.3, 0.6, HEADS).reshape(1, HEADS, 1, 1))
    return b.layer(x, b.op("Add", b.padding_mask(), b.op("Mul", b.op("Neg", b.op("Abs", _distances(b))), slopes)))


def _one_head_causal(b: RandomGraph, x: str, _: str) -> str:
    later = b.op("Mul", b.causal_mask(), b.constant(np.arange(HEADS, dtype=np.float32).reshape(1, HEADS, 1, 1)))
    return b.layer(x, b.op("Add", b.padding_mask(), later))


def _half_masked(b: RandomGraph, x: str, _: str) -> str:
    """Only one head has a mask: the others read padding."""
    heads = b.constant(np.asarray([1.0] + [0.0] * (HEADS - 1)).reshape(1, HEADS, 1, 1))
    return b.layer(x, b.op("Mul", b.padding_mask(), heads))


def _weak_mask(b: RandomGraph, x: str, _: str) -> str:
    return b.layer(x, b.op("Mul", b.padding_mask(), b.constant(1e-4)))


def _query_mask(b: RandomGraph, x: str, _: str) -> str:
    """Keys and queries are masked: rows of masked queries differ, but nobody reads them."""
    queries = b.op("Transpose", b.padding_mask(), perm=[0, 1, 3, 2])
    return b.layer(x, b.op("Add", b.padding_mask(), queries))


def _by_ids(b: RandomGraph, x: str, _: str) -> str:
    """In addition to padding, one token is masked by its id."""
    special = b.op("Cast", b.op("Equal", "input_ids", b.constant(3, np.int64)), to=TensorProto.FLOAT)
    bias = b.op("Mul", b.op("Unsqueeze", special, b.axes(1, 2)), b.constant(-10000.0))
    return b.layer(x, b.op("Add", b.padding_mask(), bias))


HOSTILE: Mapping[str, Callable[[RandomGraph, str, str], str]] = MappingProxyType(
    {
        "flat": _flat_rows,
        "flat sums": _flat_sums,
        "flat masked sums": _flat_masked_sums,
        "length first": _length_first,
        "length first rows": _length_first_rows,
        "columns": _columns,
        "scrambled": _scramble,
        "renamed": _rename,
        "extra token": _extra_token,
        "shifted": _shift,
        "rolled": _roll,
        "reversed": _reverse,
        "last kept": _last_kept,
        "reordered": _reorder,
        "in order": _in_order,
        "first to all": _first_to_all,
        "batch sum": _batch_sum,
        "first sequence": _first_sequence,
        "doubled": _double,
        "convolution": _convolution,
        "similarity": _similarity,
        "products": _dot_products,
        "cumulative over S": lambda b, x, _: b.op("CumSum", x, b.constant(1, np.int64)),
        "plain mean": lambda b, x, y: b.op("Add", y, b.op("ReduceMean", x, axes=[1], keepdims=1)),
        "maximum": lambda b, x, y: b.op("Add", y, b.op("ReduceMax", x, axes=[1], keepdims=1)),
        "softmax over S": lambda b, x, y: b.op("Mul", y, b.op("Softmax", x, axis=1)),
        "causal": _causal,
        "window": _window,
        "blocks": _blocks,
        "by head": _by_head,
        "one head causal": _one_head_causal,
        "half masked": _half_masked,
        "weak mask": _weak_mask,
        "query mask": _query_mask,
        "masked by ids": _by_ids,
    }
)
