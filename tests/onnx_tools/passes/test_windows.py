# SPDX-License-Identifier: Apache-2.0
"""Windows and causal masks: what is proved about them, and which masks stay on islands, with a reason."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.match.values.window import OPEN, Window

from tests.onnx_tools.agreement import assert_agree

from .attention_forms import FLOAT, Added, PositionedBuilder, attributes, miss_reason, with_added


def _one_mask(b: PositionedBuilder) -> list[str]:
    near = b.op("LessOrEqual", b.op("Abs", b.distance()), b.number(2))
    return [b.low(b.op("And", near, b.kept_keys()))]


def _strict(b: PositionedBuilder) -> list[str]:
    return [b.padding_mask(), b.low(b.op("Less", b.op("Abs", b.distance()), b.number(3)), -np.inf)]


def _two_sides(b: PositionedBuilder) -> list[str]:
    """Keys from three before to one after the query, from positions compared as floats."""
    query, key = (b.op("Cast", b.steps(axis), to=FLOAT) for axis in (1, 0))
    early = b.op("Less", key, b.op("Sub", query, b.constant(3.0)))
    late = b.op("Greater", b.op("Sub", key, query), b.constant(1.0))
    return [b.padding_mask(), b.op("Where", b.op("Or", early, late), b.constant(-10000.0), b.constant(0.0))]


def _causal(b: PositionedBuilder) -> list[str]:
    return [b.op("Add", b.causal_mask(), b.padding_mask())]


def _causal_by_triangle(b: PositionedBuilder) -> list[str]:
    shape = b.op("Concat", *[b.op("Shape", "input_ids", start=1)] * 2, axis=0)
    ones = b.op("ConstantOfShape", shape, value=helper.make_tensor("one", FLOAT, [1], [1.0]))
    kept = b.op("Cast", b.op("Trilu", ones, upper=0), to=9)
    return [b.padding_mask(), b.low(kept)]


def _causal_window(b: PositionedBuilder) -> list[str]:
    near = b.op("GreaterOrEqual", b.distance(), b.number(-2))
    behind = b.op("LessOrEqual", b.distance(), b.number(0))
    return [b.padding_mask(), b.low(near), b.low(behind)]


FORMS: dict[str, tuple[Added, Window]] = {
    "one mask": (_one_mask, Window(2, 2)),
    "strict": (_strict, Window(2, 2)),
    "two sides": (_two_sides, Window(3, 1)),
    "causal": (_causal, Window(OPEN, 0)),
    "causal by a triangle": (_causal_by_triangle, Window(OPEN, 0)),
    "causal window": (_causal_window, Window(2, 0)),
}


@pytest.mark.parametrize("form", FORMS)
def test_windows(form: str) -> None:
    added, window = FORMS[form]
    model = with_added(added)
    result = rewrite(model, strict=True)
    (actual,) = attributes(result)
    assert (actual["window_left"], actual["window_right"]) == (window.left, window.right)
    assert_agree(model, result)


@pytest.mark.parametrize("form", FORMS)
def test_only_the_order_of_tokens_is_the_same_under_holes(form: str) -> None:
    added, window = FORMS[form]
    model = with_added(added)
    result = rewrite(model, interface="padded")
    assert result.report.plugins.get("PadfreeAttention", 0) == window.by_order
    assert ("has a window: under a mask with holes" in miss_reason(result)) != window.by_order
    assert ("; --masks contiguous packs it" in miss_reason(result)) != window.by_order
    assert_agree(model, result)


@pytest.mark.parametrize("form", FORMS)
def test_contiguous_masks_keep_distances(form: str) -> None:
    added, window = FORMS[form]
    model = with_added(added)
    result = rewrite(model, interface="padded", masks="contiguous", strict=True)
    assert ("masks must be contiguous" in str(result.report)) != window.by_order
    assert result.report.plugins["PadfreeAttention"] == 1
    for mask in ("prefix", "left", "full"):
        assert_agree(model, result, only=mask)


def test_masks_are_of_one_kind() -> None:
    with pytest.raises(RewriteError, match="masks is 'holed', allowed are any, contiguous"):
        rewrite(with_added(_strict), masks="holed")


def _of_data(b: PositionedBuilder) -> list[str]:
    """As wide as the first id."""
    first = b.op("Unsqueeze", b.op("Gather", "input_ids", b.axes(0), axis=1), b.axes(2, 3))
    near = b.op("LessOrEqual", b.op("Abs", b.distance()), b.op("Squeeze", first, b.axes(2)))
    return [b.padding_mask(), b.low(b.op("Unsqueeze", near, b.axes(1)))]


def _of_the_length(b: PositionedBuilder) -> list[str]:
    half = b.op("Div", b.op("Shape", "input_ids", start=1), b.number(2))
    return [b.padding_mask(), b.low(b.op("LessOrEqual", b.op("Abs", b.distance()), half))]


def _with_a_gap(b: PositionedBuilder) -> list[str]:
    far = b.op("Abs", b.distance())
    return [b.padding_mask(), b.low(b.op("Or", b.op("Equal", far, b.number(0)), b.op("Greater", far, b.number(2))))]


def _global_token(b: PositionedBuilder) -> list[str]:
    """Every query sees the first key, as in Longformer."""
    near = b.op("LessOrEqual", b.op("Abs", b.distance()), b.number(2))
    return [b.padding_mask(), b.low(b.op("Or", near, b.op("Equal", b.steps(0), b.number(0))))]


def _by_a_head(b: PositionedBuilder) -> list[str]:
    heads = b.constant(np.arange(4).reshape(1, 4, 1, 1), np.int64)
    return [b.padding_mask(), b.low(b.op("LessOrEqual", b.op("Abs", b.distance()), heads))]


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        (_of_data, "keys at different distances are masked by different values"),
        (_with_a_gap, "has a bias by distance"),
        (_global_token, "is added to the scores of any tokens"),
        (_by_a_head, "has a bias by distance"),
    ],
)
def test_other_masks_are_no_windows(added: Added, reason: str) -> None:
    """A mask that depends only on the distance becomes a bias if it is not a window."""
    model: ModelProto = with_added(added)
    result = rewrite(model)
    assert [item["window_left"] for item in attributes(result)] in ([], [OPEN])
    assert [item["bias"] for item in attributes(result)] == [b"distance"] * ("bias" in reason)
    assert_agree(model, result)
    assert reason in miss_reason(rewrite(model, interface="padded"))


def test_window_that_padding_makes_wider_is_refused() -> None:
    with pytest.raises(RewriteError, match="reads masked slots"):
        rewrite(with_added(_of_the_length))
