# SPDX-License-Identifier: Apache-2.0
"""Additions around scores: bounds that no score reaches, sinks next to the keys, and one head of K and V for all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, TOKENS, with_output

from .attention_forms import HEADS, PositionedBuilder, attributes, miss_reason

LOWEST = float(np.finfo(np.float32).min)
Bound = Callable[[PositionedBuilder, str], str]  # for masked scores


def layer(b: PositionedBuilder, weigh: Bound, heads: int = HEADS) -> ModelProto:
    """One layer; `weigh` computes weights from masked scores, `heads` is the number of heads of K and V."""
    x = b.embedding()
    q, k, v = b.split(x), b.split(x, heads), b.split(x, heads)
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = b.op("Add", b.op("Mul", scores, b.constant(0.6)), b.padding_mask())
    context = b.op("MatMul", weigh(b, scores), v)
    joined = b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.axes(0, 0, HIDDEN))
    return with_output(b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x)), b, TOKENS)


def softmax(b: PositionedBuilder, scores: str) -> str:
    return b.op("Softmax", scores, axis=-1)


def lowest(b: PositionedBuilder, scores: str) -> str:
    """As in XGLM and older OPT."""
    return softmax(b, b.op("Max", scores, b.constant(LOWEST)))


def lowest_first(b: PositionedBuilder, scores: str) -> str:
    return softmax(b, b.op("Max", b.constant(LOWEST), scores))


def of_half_precision(b: PositionedBuilder, scores: str) -> str:
    return softmax(b, b.op("Clip", scores, b.constant(-65504.0), b.constant(65504.0)))


def below(b: PositionedBuilder, scores: str) -> str:
    """Without an upper bound."""
    return softmax(b, b.op("Clip", scores, b.constant(LOWEST)))


def above(b: PositionedBuilder, scores: str) -> str:
    return softmax(b, b.op("Min", scores, b.constant(-LOWEST)))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", [lowest, lowest_first, of_half_precision, below, above])
def test_bounds_that_no_score_reaches(form: Bound, interface: str) -> None:
    model = layer(PositionedBuilder(), form)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 1
    assert_agree(model, result)


def near(b: PositionedBuilder, scores: str) -> str:
    """Applied after the mask, a bound of 2 changes scores."""
    return softmax(b, b.op("Min", scores, b.constant(2.0)))


def test_bounds_that_scores_reach_stay() -> None:
    model = layer(PositionedBuilder(), near)
    result = rewrite(model, mask="attention_mask")
    assert "PadfreeAttention" not in result.report.plugins
    assert "(Min) between Q K^T and the Softmax" in miss_reason(result)
    assert_agree(model, result)


def sinks(b: PositionedBuilder, scores: str) -> str:
    """One more column for every head, as in gpt-oss; the largest score is subtracted first."""
    rows = b.op("Mul", b.op("ReduceMax", scores, axes=[-1], keepdims=1), b.constant(0.0))
    column = b.op("Add", rows, b.constant(np.full((1, HEADS, 1, 1), 0.7)))
    joined = b.op("Concat", scores, column, axis=-1)
    shifted = b.op("Sub", joined, b.op("ReduceMax", joined, axes=[-1], keepdims=1))
    return b.op("Slice", softmax(b, shifted), b.axes(0), b.axes(-1), b.axes(3))


@pytest.mark.parametrize("interface", INTERFACES)
def test_sinks_stay_and_tell_the_mask(interface: str) -> None:
    """The attention is an island, but which input is the mask is proved nevertheless."""
    model = layer(PositionedBuilder(), sinks)
    result = rewrite(model, interface=interface)
    assert "PadfreeAttention" not in result.report.plugins
    assert result.report.packed_gemm_share == 1.0
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_one_head_of_keys_for_all_queries(interface: str) -> None:
    """As in Falcon: the product broadcasts it."""
    model = layer(PositionedBuilder(), softmax, heads=1)
    result = rewrite(model, interface=interface, strict=True)
    (actual,) = attributes(result)
    assert (actual["num_heads"], actual["num_kv_heads"]) == (HEADS, 1)
    assert_agree(model, result)
