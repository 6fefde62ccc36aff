# SPDX-License-Identifier: Apache-2.0
"""Attention as tf2onnx writes it for Keras: keys first, sizes multiplied, views of views, choices as sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, TOKENS, with_output

from .attention_forms import FLOAT, HEADS, SIZE, PositionedBuilder, attributes, miss_reason

Mask = Callable[[PositionedBuilder, str], str]
LARGE = 10**9  # tf2onnx's end of a slice that has no end


def _sizes(b: PositionedBuilder, *sizes: int | str) -> str:
    """A shape of numbers, "B" and "S"."""
    positions = {"B": 0, "S": 1}
    shape = b.op("Shape", "input_ids")
    parts = [b.op("Gather", shape, b.axes(positions[s])) if isinstance(s, str) else b.axes(s) for s in sizes]
    return b.op("Concat", *parts, axis=0)


def _merge(b: PositionedBuilder, heads: str, sizes: str) -> str:
    """[B*H,...] from [B,H,...] according to its sizes, with the product of the first two."""
    count = b.op("ReduceProd", b.op("Gather", sizes, b.axes(0, 1)), keepdims=1)
    return b.op("Reshape", heads, b.op("Concat", count, b.axes(-1), b.op("Gather", sizes, b.axes(3)), axis=0))


def _heads(b: PositionedBuilder, x: str) -> str:
    """[B*H,S,D]."""
    result = b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), b.axes(0, 0, HEADS, SIZE))
    heads = b.op("Transpose", result, perm=[0, 2, 1, 3])
    return _merge(b, heads, b.op("Shape", heads))


def _add(b: PositionedBuilder, scores: str) -> str:
    """A mask [B,1,S,1] along the keys, which come first, made from a slice that names all axes."""
    mask = b.op("Unsqueeze", "attention_mask", b.axes(1, 2))
    whole = b.op("Slice", mask, b.axes(0, 0, 0, 0), b.axes(*[LARGE] * 4), b.axes(0, 1, 2, 3), b.axes(1, 1, 1, 1))
    gone = b.op("Sub", b.constant(1.0), b.op("Cast", whole, to=FLOAT))
    return b.op("Add", scores, b.op("Reshape", b.op("Mul", gone, b.constant(-1e9)), b.axes(0, 1, -1, 1)))


def _choose(b: PositionedBuilder, scores: str) -> str:
    """kept * scores + (1 - kept) * lowest."""
    kept = b.op("Transpose", b.kept_keys(), perm=[0, 1, 3, 2])
    parts = b.op("Cast", kept, to=FLOAT), b.op("Cast", b.op("Not", kept), to=FLOAT)
    return b.op("Add", b.op("Mul", parts[0], scores), b.op("Mul", b.constant(-2e38), parts[1]))


def _count(b: PositionedBuilder, scores: str) -> str:
    """Causal, by running sums of ones, along keys and queries."""
    ones = b.op("Expand", b.constant(1, np.int32), _sizes(b, 1, "S", "S"))
    keys, queries = (b.op("CumSum", ones, b.constant(axis, np.int32)) for axis in (-2, -1))
    seen = b.op("And", b.op("Transpose", b.kept_keys(), perm=[0, 1, 3, 2]), b.op("LessOrEqual", keys, queries))
    return b.op("Where", seen, scores, b.constant(-1e9))


def keys_first(mask: Mask, *, with_ones: bool = True) -> ModelProto:
    """Scores [B,H,keys,queries] of [B*H,S,S], and weights that are transposed on their way to V."""
    b = PositionedBuilder()
    x = b.embedding()
    q, k, v = (_heads(b, x) for _ in range(3))
    scores = b.op("MatMul", k, b.op("Transpose", q, perm=[0, 2, 1]))
    if with_ones:
        scores = b.op("Squeeze", b.op("Reshape", scores, _sizes(b, "B", HEADS, "S", "S", 1)), b.axes(4))
    else:
        scores = b.op("Reshape", scores, _sizes(b, "B", HEADS, "S", "S"))
    scores = mask(b, b.op("Mul", scores, b.constant(0.6)))
    weights = b.op("Unsqueeze", b.op("Softmax", scores, axis=2), b.axes(2))  # [B,H,1,keys,queries]
    transposed = b.op("Transpose", weights, perm=[0, 1, 4, 2, 3])
    count = b.op("ReduceProd", b.op("Gather", b.op("Shape", transposed), b.axes(0, 1)), keepdims=1)
    last = b.op("Gather", b.op("Shape", transposed), b.axes(4))
    rows = b.op("Reshape", transposed, b.op("Concat", count, b.axes(-1), last, axis=0))
    context = b.op("Reshape", b.op("MatMul", rows, v), _sizes(b, "B", HEADS, "S", SIZE))
    joined = b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.axes(0, 0, HIDDEN))
    return with_output(b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x)), b, TOKENS)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("with_ones", [False, True])
@pytest.mark.parametrize(("mask", "right"), [(_add, -1), (_choose, -1), (_count, 0)])
def test_keys_first(mask: Mask, right: int, with_ones: bool, interface: str) -> None:
    model = keys_first(mask, with_ones=with_ones)
    result = rewrite(model, interface=interface, strict=True)
    assert [item["window_right"] for item in attributes(result)] == [right]
    assert_agree(model, result)


def _of_all_queries(b: PositionedBuilder, scores: str) -> str:
    """A mask along the queries, which hides no key."""
    gone = b.op("Sub", b.constant(1.0), b.op("Cast", b.op("Unsqueeze", "attention_mask", b.axes(1, 2)), to=FLOAT))
    return b.op("Add", _add(b, scores), b.op("Mul", gone, b.constant(0.5)))


def test_a_mask_along_queries_is_no_mask_of_keys() -> None:
    """What is added alike to all keys of a query is told apart from the mask; the attention stays padded, and right."""
    model = keys_first(_of_all_queries)
    result = rewrite(model)
    assert "PadfreeAttention" not in result.report.plugins
    assert "masks of node" in miss_reason(result) or "mask of node" in miss_reason(result)
    assert_agree(model, result)


def _read_twice() -> ModelProto:
    """The weights, keys first, are an output as well."""
    model = keys_first(_add)
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    shape = ["batch", HEADS, "sequence", "sequence"]
    model.graph.output.append(helper.make_tensor_value_info(softmax.output[0], TensorProto.FLOAT, shape))
    return model


def test_weights_that_are_given_out() -> None:
    model = _read_twice()
    result = rewrite(model, interface="padded")
    assert_agree(model, result, only="full")
