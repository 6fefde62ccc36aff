# SPDX-License-Identifier: Apache-2.0
"""Biases by key position only, as BLOOM and MPT write ALiBi, and in causal attention: they are slopes, too."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from padfree.onnx_tools import RewriteError, rewrite

from tests.onnx_tools.agreement import assert_agree
from tests.support.encoder import HIDDEN, POSITIONS, TOKENS, VOCABULARY, with_output

from .attention_forms import (
    FLOAT,
    HEADS,
    INT64,
    SIZE,
    Added,
    PositionedBuilder,
    assert_stays_on_islands,
    attributes,
    miss_reason,
    with_added,
)
from .test_distance_biases import SLOPES, bias_of

UPWARD = np.reshape(SLOPES, (1, HEADS, 1, 1))


def _causal(b: PositionedBuilder) -> str:
    """[B,1,S,S]: 0 for kept keys up to the query."""
    seen = b.op("LessOrEqual", b.steps(0), b.steps(1))
    return b.low(b.op("And", seen, b.kept_keys()))


def _count(b: PositionedBuilder, numbers: str = "attention_mask") -> str:
    """[B,1,1,S]: how many kept tokens come before each, 0 for padding."""
    kept = b.op("Cast", numbers, to=INT64)
    ahead = b.op("Sub", b.op("CumSum", kept, b.number(1)), b.number(1))
    return b.op("Cast", b.op("Unsqueeze", b.op("Mul", ahead, kept), b.axes(1, 2)), to=FLOAT)


def _by_the_mask(b: PositionedBuilder) -> list[str]:
    return [b.op("Mul", _count(b), b.constant(UPWARD)), _causal(b)]


def _by_the_mask_and_one(b: PositionedBuilder) -> list[str]:
    """Biases with another number per head and one per query, which have no effect."""
    line = b.op("Add", b.op("Mul", _count(b), b.constant(UPWARD)), b.weight(1, HEADS, 1, 1))
    return [b.op("Sub", line, b.op("Cast", b.steps(1), to=FLOAT)), _causal(b)]


@pytest.mark.parametrize("added", [_by_the_mask, _by_the_mask_and_one])
def test_tokens_that_the_mask_counts(added: Added) -> None:
    """What counts tokens does not see padding between them: any mask will do."""
    model = with_added(added)
    for interface in ("packed", "padded"):
        result = rewrite(model, interface=interface, strict=True)
        (actual,) = attributes(result)
        assert (actual["bias"], actual["window_right"]) == (b"slope", 0)
        np.testing.assert_allclose(bias_of(result), SLOPES, rtol=1e-6)
        assert_agree(model, result)


def _three_axes(by_head: bool) -> ModelProto:
    """Scores [B*H,S,S] or [H*B,S,S] and a bias [...,1,S], as in BLOOM's baddbmm."""
    b = PositionedBuilder()
    x = b.embedding()
    first, merged = ((1, 0), [2, 0, 1, 3]) if by_head else ((0, 1), [0, 2, 1, 3])
    length = b.op("Shape", "input_ids", start=1)

    def merge(heads: str, *rest: str) -> str:
        return b.op("Reshape", heads, b.op("Concat", b.axes(-1), *rest, axis=0))

    def split() -> str:
        result = b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), b.axes(0, 0, HEADS, SIZE))
        return merge(b.op("Transpose", result, perm=merged), length, b.axes(SIZE))

    def of_scores(added: str, *rest: str) -> str:
        shape = b.op("Shape", "input_ids", end=1)
        wide = b.op("Expand", added, b.op("Concat", shape, b.axes(HEADS, 1, 1), axis=0))
        return merge(b.op("Transpose", wide, perm=[*first, 2, 3]), *rest, length)

    q, k, v = split(), split(), split()
    scores = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), b.constant(0.6))
    scores = b.op("Add", of_scores(b.op("Mul", _count(b), b.constant(UPWARD)), b.axes(1)), scores)
    scores = b.op("Add", scores, of_scores(_causal(b), length))
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    sizes = b.op("Shape", "input_ids")
    heads = b.axes(HEADS)
    if by_head:
        apart = b.op("Reshape", context, b.op("Concat", heads, sizes, b.axes(SIZE), axis=0))
        joined = b.op("Transpose", apart, perm=[1, 2, 0, 3])
    else:
        batch = b.op("Shape", "input_ids", end=1)
        apart = b.op("Reshape", context, b.op("Concat", batch, heads, length, b.axes(SIZE), axis=0))
        joined = b.op("Transpose", apart, perm=[0, 2, 1, 3])
    x = b.norm(b.op("Add", b.linear(b.op("Reshape", joined, b.axes(0, 0, HIDDEN)), HIDDEN, HIDDEN), x))
    return with_output(x, b, TOKENS)


@pytest.mark.parametrize("by_head", [False, True])
def test_batch_and_heads_in_one_axis(by_head: bool) -> None:
    model = _three_axes(by_head)
    for interface in ("packed", "padded"):
        result = rewrite(model, interface=interface, strict=True)
        np.testing.assert_allclose(bias_of(result), SLOPES, rtol=1e-6)
        assert_agree(model, result)


def _of_a_buffer(b: PositionedBuilder) -> list[str]:
    """The last S of a buffer's numbers [H,1,P], as in MPT: they depend on the length, but their steps do not."""
    buffer = b.constant(UPWARD[0] * (1 - np.arange(POSITIONS, 0, -1)))
    start = b.op("Sub", b.axes(POSITIONS), b.op("Shape", "input_ids", start=1))
    return [b.op("Slice", buffer, start, b.axes(POSITIONS), b.axes(2)), _causal(b)]


def _of_steps(b: PositionedBuilder) -> list[str]:
    return [b.op("Mul", b.op("Cast", b.steps(0, 1, 2), to=FLOAT), b.constant(UPWARD)), _causal(b)]


def _spread(b: PositionedBuilder) -> list[str]:
    """The same for every query, [1,H,S,S]."""
    line = b.op("Mul", b.op("Cast", b.steps(0, 1, 2), to=FLOAT), b.constant(UPWARD))
    length = b.op("Shape", "input_ids", start=1)
    return [b.op("Expand", line, b.op("Concat", b.axes(1, HEADS), length, length, axis=0)), _causal(b)]


def _one_after_the_other(b: PositionedBuilder) -> list[str]:
    """slope * key - slope * query."""
    slopes = b.constant(UPWARD)
    keys, queries = (b.op("Mul", b.op("Cast", b.steps(*axes), to=FLOAT), slopes) for axes in ((0, 1, 2), (0, 1, 3)))
    return [keys, b.op("Neg", queries), _causal(b)]


def _of_distances(b: PositionedBuilder) -> list[str]:
    """slope * (key - query), which is not an ALiBi slope for keys ahead, but nobody sees those."""
    return [b.op("Mul", b.op("Cast", b.distance(), to=FLOAT), b.constant(UPWARD)), _causal(b)]


def _and_a_number_a_query(b: PositionedBuilder) -> list[str]:
    """A query's number of visible keys changes no weight."""
    seen = b.op("Cast", b.op("LessOrEqual", b.steps(0), b.steps(1)), to=FLOAT)
    return [b.op("ReduceSum", seen, b.axes(-1), keepdims=1), *_of_steps(b)]


def _with_the_causal_mask(b: PositionedBuilder) -> list[str]:
    """Both in one tensor [1,H,S,S], with -infinity ahead of the query."""
    ahead = b.op("Greater", b.steps(0), b.steps(1))
    mask = b.op("Where", ahead, b.constant(-np.inf), b.constant(0.0))
    line = b.op("Mul", b.op("Cast", b.distance(), to=FLOAT), b.constant(UPWARD))
    return [b.op("Add", line, mask), b.padding_mask()]


LINES = (
    _of_a_buffer, _of_steps, _spread, _one_after_the_other, _of_distances, _and_a_number_a_query, _with_the_causal_mask,
)  # fmt: skip


@pytest.mark.parametrize("added", LINES)
def test_slots(added: Added) -> None:
    model = with_added(added)
    result = rewrite(model, strict=True)
    (actual,) = attributes(result)
    assert (actual["bias"], actual["window_right"]) == (b"slope", 0)
    np.testing.assert_allclose(bias_of(result), SLOPES, rtol=1e-6)
    assert_agree(model, result)
    padded = rewrite(model, interface="padded")
    assert "has a bias by distance: under a mask with holes" in miss_reason(padded)
    assert "; --masks contiguous packs it" in miss_reason(padded)
    assert_agree(model, padded)
    together = rewrite(model, interface="padded", masks="contiguous", strict=True)
    for only in ("prefix", "left", "full"):
        assert_agree(model, together, only=only)
    with pytest.raises(AssertionError, match="differs by up to"):  # as the reason says
        assert_agree(model, together, only="holes")


def test_a_window_hides_what_is_beyond_it() -> None:
    """Squares of distances become a table if a query sees only three tokens on either side."""

    def add(b: PositionedBuilder) -> list[str]:
        far = b.op("Cast", b.op("Abs", b.distance()), to=FLOAT)
        near = b.low(b.op("LessOrEqual", far, b.constant(3.0)))
        return [b.padding_mask(), b.op("Mul", b.op("Mul", far, far), b.constant(-0.1)), near]

    model = with_added(add)
    result = rewrite(model, strict=True)
    (actual,) = attributes(result)
    assert (actual["bias"], actual["bias_range"], actual["window_left"], actual["window_right"]) == (
        b"distance",
        3,
        3,
        3,
    )
    assert_agree(model, result)


def test_keys_on_both_sides_make_a_table() -> None:
    """slope * (key - query) is not slope * |key - query|, but positions are limited, so that a table can hold it."""
    b = PositionedBuilder()
    words = b.op("Gather", b.weight(VOCABULARY, HIDDEN), "input_ids")
    positions = b.op("Gather", b.weight(POSITIONS, HIDDEN), b.steps(0))
    x = b.norm(b.op("Add", words, positions))
    line = b.op("Mul", _count(b), b.constant(UPWARD))
    model = with_output(b.attend(x, b.split(x), b.split(x), b.split(x), line, b.padding_mask()), b, TOKENS)
    result = rewrite(model, strict=True)
    (actual,) = attributes(result)
    assert (actual["bias"], actual["bias_range"]) == (b"distance", POSITIONS - 1)
    np.testing.assert_allclose(
        np.diff(bias_of(result), axis=1), np.reshape(SLOPES, (HEADS, 1)) * np.ones(62), rtol=1e-4
    )
    assert_agree(model, result)


def _both_sides(b: PositionedBuilder) -> list[str]:
    return [b.op("Mul", _count(b), b.constant(UPWARD)), b.padding_mask()]


def _of_squares(b: PositionedBuilder) -> list[str]:
    far = b.op("Cast", b.steps(0, 1, 2), to=FLOAT)
    return [b.op("Mul", b.op("Mul", far, far), b.constant(0.01 * UPWARD)), _causal(b)]


def _steeper_in_long_rows(b: PositionedBuilder) -> list[str]:
    """A slope of 1 / length."""
    length = b.op("Cast", b.op("Shape", "input_ids", start=1), to=FLOAT)
    return [b.op("Div", b.op("Cast", b.steps(0, 1, 2), to=FLOAT), length), _causal(b)]


def _by_ids(b: PositionedBuilder) -> list[str]:
    return [b.op("Mul", _count(b, "input_ids"), b.constant(0.01 * UPWARD)), _causal(b)]


def _high_in_padding(b: PositionedBuilder) -> list[str]:
    """Lifts padding above what the mask takes from it."""
    gone = b.op("Sub", b.constant(1.0), b.op("Cast", b.op("Unsqueeze", "attention_mask", b.axes(1, 2)), to=FLOAT))
    line = b.op("Mul", _count(b), b.constant(UPWARD))
    lifted = b.op("Mul", gone, b.constant(20000.0))
    return [b.op("Max", line, lifted), _causal(b)]


def _of_logarithms(b: PositionedBuilder) -> list[str]:
    line = b.op("Log", b.op("Cast", b.steps(0, 1, 2), to=FLOAT))
    return [b.op("Mul", line, b.constant(UPWARD)), _causal(b)]


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        (_both_sides, "still changes at a distance of 65536"),
        (_of_squares, "does not grow evenly along the keys"),
        (_by_ids, "is made of more than positions and the mask"),
    ],
)
def test_others_stay_on_islands(added: Added, reason: str) -> None:
    assert_stays_on_islands(with_added(added), reason)


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        (_steeper_in_long_rows, "does not grow evenly along the keys"),
        (_of_logarithms, "is not finite for every key"),
    ],
)
def test_what_reads_padding_is_refused(added: Added, reason: str) -> None:
    """A sequence's numbers depend on how far its batch is padded, or logarithms hide the first key from everybody."""
    with pytest.raises(RewriteError, match=reason):
        rewrite(with_added(added))


def test_padding_that_a_bias_lifts_above_the_mask() -> None:
    """The original reads padding there, and its attention stays as it is."""
    model = with_added(_high_in_padding)
    result = rewrite(model, verify=False)
    assert "has numbers of another size for padding" in miss_reason(result)
    assert "PadfreeAttention" not in result.report.plugins
    with pytest.raises(RewriteError, match="the original's own answers depend on its padding"):
        rewrite(model)


def test_capped_scores_are_told() -> None:
    """Everything around the attention is packed; the attention kernel cannot cap scores."""
    b = PositionedBuilder()
    x = b.embedding()
    q, k, v = b.split(x), b.split(x), b.split(x)
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = b.op("Mul", b.op("Tanh", b.op("Div", scores, b.constant(2.0))), b.constant(2.0))
    context = b.op("MatMul", b.op("Softmax", b.op("Add", scores, b.padding_mask()), axis=-1), v)
    joined = b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.axes(0, 0, HIDDEN))
    model = with_output(b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x)), b, TOKENS)
    assert_stays_on_islands(model, "the scores are capped by 'n")
    assert rewrite(model).report.packed_gemm_share == 1.0
