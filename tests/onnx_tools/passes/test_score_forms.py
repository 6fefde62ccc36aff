# SPDX-License-Identifier: Apache-2.0
"""Attention with scores and weights written in other ways: factors, transposed MatMuls, masks after the Softmax."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from onnx import ModelProto, TensorProto
from padfree.onnx_tools import RewriteError, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, TOKENS, with_output

from .attention_forms import FLOAT, HEADS, PositionedBuilder, assert_stays_on_islands

Form = Callable[[PositionedBuilder, str], str]  # takes the scores, or the weights


def same(_: PositionedBuilder, x: str) -> str:
    return x


def mask_scores(b: PositionedBuilder, scores: str) -> str:
    return b.op("Add", scores, b.padding_mask())


def model(
    factor: Form = same, mask: Form = mask_scores, weights: Form = same, *, keys_first: bool = False
) -> ModelProto:
    """One layer: scores changed by `factor`, masked by `mask`, then by a Softmax, whose results `weights` changes."""
    b = PositionedBuilder()
    x = b.embedding()
    q, k, v = (b.split(x) for _ in range(3))
    if keys_first:
        gemm = b.op("MatMul", k, b.op("Transpose", q, perm=[0, 1, 3, 2]))
        gemm = b.op("Transpose", b.op("Mul", gemm, b.constant(0.4)), perm=[0, 1, 3, 2])
    else:
        gemm = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    attended = weights(b, b.op("Softmax", mask(b, factor(b, gemm)), axis=-1))
    heads = b.op("Transpose", b.op("MatMul", attended, v), perm=[0, 2, 1, 3])
    joined = b.op("Reshape", heads, b.axes(0, 0, HIDDEN))
    return with_output(b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x)), b, TOKENS)


def assert_packed(original: ModelProto, interface: str) -> None:
    result = rewrite(original, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 1
    assert_agree(original, result)


def of_heads(b: PositionedBuilder, scores: str) -> str:
    return b.op("Mul", scores, b.op("Exp", b.weight(HEADS, 1, 1)))


def of_a_sequence(b: PositionedBuilder, scores: str) -> str:
    """Times a number, then times log(tokens + 1)."""
    count = b.op("ReduceSum", b.op("Cast", "attention_mask", to=FLOAT), b.axes(1), keepdims=1)
    known = b.op("Log", b.op("Add", count, b.constant(1.0)))
    return b.op("Mul", b.op("Unsqueeze", known, b.axes(2, 3)), b.op("Mul", scores, b.constant(0.5)))


def of_queries(b: PositionedBuilder, scores: str) -> str:
    """Divided by sqrt(position + 1)."""
    index = b.op("Cast", b.op("Add", b.steps(1), b.number(1)), to=FLOAT)
    return b.op("Div", scores, b.op("Sqrt", index))


@pytest.mark.parametrize("factor", [of_heads, of_a_sequence])
@pytest.mark.parametrize("interface", INTERFACES)
def test_factors_that_all_keys_share(factor: Form, interface: str) -> None:
    assert_packed(model(factor), interface)


def test_factors_of_queries() -> None:
    assert_packed(model(of_queries), "packed")


def test_factors_of_keys_stay() -> None:
    def of_keys(b: PositionedBuilder, scores: str) -> str:
        index = b.op("Cast", b.op("Add", b.steps(0), b.number(1)), to=FLOAT)
        return b.op("Div", scores, b.op("Sqrt", index))

    assert_stays_on_islands(model(of_keys), "the scores go through")


@pytest.mark.parametrize("interface", INTERFACES)
def test_products_of_keys_and_queries_that_are_transposed(interface: str) -> None:
    assert_packed(model(keys_first=True), interface)


def keep_mask(b: PositionedBuilder, axis: int = 2) -> str:
    """Booleans [B,1,1,S], or for queries [B,1,S,1]."""
    mask = b.op("Unsqueeze", "attention_mask", b.axes(1, axis))
    return b.op("Cast", mask, to=TensorProto.BOOL)


def logarithm(b: PositionedBuilder, scores: str) -> str:
    return b.op("Add", scores, b.op("Log", b.op("Cast", keep_mask(b), to=FLOAT)))


def reciprocal(b: PositionedBuilder, scores: str) -> str:
    """1 - 1 / mask."""
    return b.op("Add", scores, b.op("Sub", b.constant(1.0), b.op("Reciprocal", b.op("Cast", keep_mask(b), to=FLOAT))))


def rectify(b: PositionedBuilder, scores: str) -> str:
    gone = b.op("Relu", b.op("Sub", b.constant(1.0), b.op("Cast", keep_mask(b), to=FLOAT)))
    return b.op("Sub", scores, b.op("Mul", gone, b.constant(1e9)))


def signs(b: PositionedBuilder, scores: str) -> str:
    sign = b.op("Sign", b.op("Cast", keep_mask(b), to=FLOAT))
    return b.op("Add", scores, b.op("Mul", b.op("Sub", sign, b.constant(1.0)), b.constant(1e9)))


@pytest.mark.parametrize("mask", [logarithm, reciprocal, rectify, signs])
@pytest.mark.parametrize("interface", INTERFACES)
def test_functions_of_the_mask(mask: Form, interface: str) -> None:
    assert_packed(model(mask=mask), interface)


def fill(b: PositionedBuilder, weights: str) -> str:
    return b.op("Where", b.op("Not", keep_mask(b)), b.constant(0.0), weights)


def multiply(b: PositionedBuilder, weights: str) -> str:
    return b.op("Mul", b.op("Cast", keep_mask(b), to=FLOAT), weights)


def of_kept_queries(b: PositionedBuilder, weights: str) -> str:
    return b.op("Where", keep_mask(b, 3), weights, b.constant(0.0))


def of_pairs(b: PositionedBuilder, weights: str) -> str:
    return b.op("Where", b.op("And", keep_mask(b), keep_mask(b, 3)), weights, b.constant(0.0))


def numbers_alone(b: PositionedBuilder, weights: str) -> str:
    """As torch.nan_to_num is exported."""
    weights = b.op("Where", b.op("IsNaN", weights), b.constant(0.0), weights)
    for test, value in (("Greater", 3.4e38), ("Less", -3.4e38)):
        side = b.op(test, weights, b.constant(0.0))
        weights = b.op("Where", b.op("And", b.op("IsInf", weights), side), b.constant(value), weights)
    return weights


def equal_to_itself(b: PositionedBuilder, weights: str) -> str:
    return b.op("Where", b.op("Not", b.op("Equal", weights, weights)), b.constant(0.0), weights)


def divide(b: PositionedBuilder, weights: str) -> str:
    weights = multiply(b, weights)
    summed = b.op("ReduceSum", weights, b.axes(-1), keepdims=1)
    return b.op("Div", weights, b.op("Add", summed, b.constant(1e-13)))


def divided_by_more(b: PositionedBuilder, weights: str) -> str:
    weights = multiply(b, weights)
    summed = b.op("ReduceSum", weights, b.axes(-1), keepdims=1)
    return b.op("Div", weights, b.op("Clip", summed, b.constant(1e-9)))


@pytest.mark.parametrize(
    "weights",
    [fill, multiply, of_kept_queries, of_pairs, numbers_alone, equal_to_itself, divide, divided_by_more],
)
@pytest.mark.parametrize("interface", INTERFACES)
def test_what_changes_no_weights(weights: Form, interface: str) -> None:
    assert_packed(model(weights=weights), interface)


def other_mask(b: PositionedBuilder, weights: str) -> str:
    ids = b.op("Unsqueeze", b.op("Equal", "input_ids", b.number(7)), b.axes(1, 2))
    return b.op("Where", ids, b.constant(0.0), weights)


def halves(b: PositionedBuilder, weights: str) -> str:
    return b.op("Mul", weights, b.op("Add", b.op("Cast", keep_mask(b), to=FLOAT), b.constant(1.0)))


def window(b: PositionedBuilder, weights: str) -> str:
    near = b.op("Less", b.op("Abs", b.distance()), b.number(2))
    return b.op("Where", near, weights, b.constant(0.0))


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (other_mask, "are masked differently from the scores before it"),
        (window, "are masked differently from the scores before it"),
        (halves, "are read by 0 MatMuls instead of one"),
    ],
)
def test_what_changes_weights_stays(weights: Form, reason: str) -> None:
    assert_stays_on_islands(model(weights=weights), reason)


def test_a_mask_after_the_softmax_alone_is_none() -> None:
    """Weights of padding are removed, but they were included in the softmax's sum."""
    original = model(mask=same, weights=multiply)
    with pytest.raises(RewriteError, match="masked differently from the scores before it"):
        rewrite(original)
