# SPDX-License-Identifier: Apache-2.0
"""A Softmax that is written out is a Softmax: attention and pooling by it are packed, with the same results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from onnx import ModelProto, TensorProto
from padfree.onnx_tools import RewriteError, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, with_output

Weights = Callable[[EncoderBuilder, str], str]  # computed from scores


def total(b: EncoderBuilder, x: str) -> str:
    return b.op("ReduceSum", x, b.axes(-1), keepdims=1)


def less_largest(b: EncoderBuilder, x: str) -> str:
    return b.op("Sub", x, b.op("ReduceMax", x, axes=[-1], keepdims=1))


def shift(b: EncoderBuilder, x: str) -> str:
    return b.op("Exp", less_largest(b, x))


def divide(b: EncoderBuilder, scores: str) -> str:
    """As jax.nn.softmax computes it."""
    raised = shift(b, scores)
    return b.op("Div", raised, total(b, raised))


def reciprocal(b: EncoderBuilder, scores: str) -> str:
    raised = shift(b, scores)
    return b.op("Mul", raised, b.op("Reciprocal", total(b, raised)))


def without_axes(b: EncoderBuilder, scores: str) -> str:
    """Reductions drop their axis, and views and an Expand restore it, as jax2onnx writes them."""
    largest = b.op("ReduceMax", scores, axes=[-1], keepdims=0)
    raised = b.op("Exp", b.op("Sub", scores, b.op("Unsqueeze", largest, b.axes(3))))
    summed = b.op("Reshape", b.op("ReduceSum", raised, b.axes(3), keepdims=0), b.axes(0, 0, 0, 1), allowzero=0)
    return b.op("Div", raised, b.op("Expand", summed, b.axes(1, 1, 1, 1)))


def before_a_softmax(b: EncoderBuilder, scores: str) -> str:
    return b.op("Softmax", less_largest(b, scores), axis=-1)


def of_logarithms(b: EncoderBuilder, scores: str) -> str:
    return b.op("Exp", b.op("LogSoftmax", scores, axis=-1))


def encoder(weights: Weights, mask: Weights | None = None) -> tuple[EncoderBuilder, str]:
    """One layer with these attention weights; unless `mask` is given, a padding mask is added to the scores."""
    b = EncoderBuilder()
    x = b.embedding()
    q, v = (b.heads(b.linear(x, HIDDEN, HIDDEN), [0, 2, 1, 3]) for _ in range(2))
    k = b.heads(b.linear(x, HIDDEN, HIDDEN), [0, 2, 3, 1])
    scores = b.op("Mul", b.op("MatMul", q, k), b.constant(0.35))
    if mask is None:
        scores = b.op("Add", scores, b.padding_mask())
    context = b.op("MatMul", weights(b, scores), v)
    joined = b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.axes(0, 0, HIDDEN))
    return b, b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x))


def encoder_model(weights: Weights, mask: Weights | None = None) -> ModelProto:
    b, x = encoder(weights, mask)
    return with_output(x, b, TOKENS)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", [divide, reciprocal, without_axes, before_a_softmax, of_logarithms])
def test_forms(form: Weights, interface: str) -> None:
    model = encoder_model(form)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 1
    assert_agree(model, result)


def keep_mask(b: EncoderBuilder) -> str:
    """Float [B,1,1,S]."""
    return b.op("Cast", b.op("Unsqueeze", "attention_mask", b.axes(1, 2)), to=TensorProto.FLOAT)


def masked_weights(b: EncoderBuilder, scores: str) -> str:
    weights = b.op("Mul", b.op("Softmax", scores, axis=-1), keep_mask(b))
    return b.op("Div", weights, total(b, weights))


def masked_exponentials(b: EncoderBuilder, scores: str) -> str:
    weights = b.op("Mul", keep_mask(b), shift(b, scores))
    return b.op("Div", weights, total(b, weights))


def guard(b: EncoderBuilder, scores: str) -> str:
    """As jax2onnx writes dot_product_attention: rows with sum 0 get weights 0."""
    weights = b.op("Mul", b.op("Softmax", scores, axis=-1), keep_mask(b))
    summed = total(b, weights)
    some = b.op("Greater", summed, b.constant(0.0))
    quotient = b.op("Div", weights, b.op("Where", some, summed, b.constant(1.0)))
    return b.op("Where", some, quotient, b.constant(0.0))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", [masked_weights, masked_exponentials, guard])
def test_masks_that_weights_are_multiplied_by(form: Weights, interface: str) -> None:
    """The mask need not be named: it is proved in the place where it would have been added."""
    model = encoder_model(form, mask=form)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 1
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_pooling_by_weights(interface: str) -> None:
    b, x = encoder(divide)
    scores = b.op("Squeeze", b.linear(x, HIDDEN, 1), b.axes(2))
    raised = b.op("Mul", shift(b, scores), b.op("Cast", "attention_mask", to=TensorProto.FLOAT))
    weights = b.op("Unsqueeze", b.op("Div", raised, total(b, raised)), b.axes(2))
    pooled = b.op("ReduceSum", b.op("Mul", x, weights), b.axes(1), keepdims=0)
    model = with_output(pooled, b, ["batch", HIDDEN])
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)


def other_sum(b: EncoderBuilder, scores: str) -> str:
    """The sum is over other numbers, so this is not a Softmax."""
    raised = shift(b, scores)
    return b.op("Div", raised, total(b, b.op("Mul", raised, raised)))


def weigh(b: EncoderBuilder, scores: str) -> str:
    """Factors of 0.5 and 1 are not a mask."""
    half = b.op("Add", b.op("Mul", keep_mask(b), b.constant(0.5)), b.constant(0.5))
    weights = b.op("Mul", b.op("Softmax", scores, axis=-1), half)
    return b.op("Div", weights, total(b, weights))


def exponentiate(b: EncoderBuilder, scores: str) -> str:
    """Large scores overflow here, but not in a Softmax: the results would differ."""
    raised = b.op("Exp", scores)
    return b.op("Div", raised, total(b, raised))


@pytest.mark.parametrize("form", [other_sum, exponentiate])
def test_what_is_no_softmax_is_none(form: Weights) -> None:
    with pytest.raises(RewriteError, match="neither a Softmax nor an Attention"):
        rewrite(encoder_model(form))


def test_factors_that_are_no_mask_stay() -> None:
    model = encoder_model(weigh)
    result = rewrite(model)
    assert "PadfreeAttention" not in result.report.plugins
    assert_agree(model, result)
