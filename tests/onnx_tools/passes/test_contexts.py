# SPDX-License-Identifier: Apache-2.0
"""Attention's result [B,H,S,D] is changed before its heads are joined: gates, norms, factors per head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, TOKENS, with_output

from .attention_forms import HEADS, SIZE, PositionedBuilder

Change = Callable[[PositionedBuilder, str, str, str], str]  # takes the context, the queries and the values [B,H,S,D]


def gate(b: PositionedBuilder, context: str, q: str, _v: str) -> str:
    return b.op("Mul", context, b.op("Sigmoid", q))


def by_head(b: PositionedBuilder, context: str, _q: str, _v: str) -> str:
    return b.op("Mul", context, b.weight(1, HEADS, 1, 1))


def norm(b: PositionedBuilder, context: str, _q: str, _v: str) -> str:
    return b.norm(context, SIZE)


def with_values(b: PositionedBuilder, context: str, _q: str, v: str) -> str:
    return b.op("Add", context, v)


def guard(b: PositionedBuilder, context: str, _q: str, _v: str) -> str:
    """Rows without any key are zeros."""
    return b.op("Where", b.op("IsNaN", context), b.constant(0.0), context)


def twice(b: PositionedBuilder, context: str, _q: str, _v: str) -> str:
    """Two nodes read the heads."""
    return b.op("Add", b.op("Relu", context), b.op("Abs", context))


def model(change: Change) -> ModelProto:
    b = PositionedBuilder()
    x = b.embedding()
    q, k, v = (b.split(x) for _ in range(3))
    scores = b.op("Add", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2])), b.padding_mask())
    context = change(b, b.op("MatMul", b.op("Softmax", scores, axis=-1), v), q, v)
    joined = b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.axes(0, 0, HIDDEN))
    return with_output(b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x)), b, TOKENS)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("change", [gate, by_head, norm, with_values, guard, twice])
def test_heads_that_are_changed(change: Change, interface: str) -> None:
    original = model(change)
    result = rewrite(original, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 1
    assert_agree(original, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_heads_one_by_one(interface: str) -> None:
    """A traced loop over heads: each is sliced out and attended to separately."""
    b = PositionedBuilder()
    x = b.embedding()
    q, k, v = (b.split(x) for _ in range(3))
    contexts = []
    for head in range(HEADS):
        cut = b.axes(head), b.axes(head + 1), b.axes(1)
        one_q, one_k, one_v = (b.op("Slice", item, *cut) for item in (q, k, v))
        scores = b.op("MatMul", one_q, b.op("Transpose", one_k, perm=[0, 1, 3, 2]))
        weights = b.op("Softmax", b.op("Add", scores, b.padding_mask()), axis=-1)
        contexts.append(b.op("MatMul", weights, one_v))
    heads = b.op("Transpose", b.op("Concat", *contexts, axis=1), perm=[0, 2, 1, 3])
    original = with_output(b.op("Reshape", heads, b.axes(0, 0, HIDDEN)), b, TOKENS)
    result = rewrite(original, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == HEADS
    assert_agree(original, result)


def test_heads_that_an_island_reads() -> None:
    """Attention is packed nevertheless."""

    def running(b: PositionedBuilder, context: str, _q: str, _v: str) -> str:
        return b.op("CumSum", context, b.constant(2, np.int64))

    original = model(running)
    result = rewrite(original)
    assert result.report.plugins["PadfreeAttention"] == 1
    assert not result.report.complete
    assert_agree(original, result)
