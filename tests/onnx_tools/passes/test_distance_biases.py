# SPDX-License-Identifier: Apache-2.0
"""Biases by distance: tables of buckets, slopes, and what only looks like one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import numpy_helper
from padfree.onnx_tools import RewriteResult, rewrite
from padfree.onnx_tools.operators import OPERATORS

from tests.onnx_tools.agreement import assert_agree
from tests.support.encoder import HIDDEN, POSITIONS, TOKENS, VOCABULARY, with_output

from .attention_forms import (
    FLOAT,
    HEADS,
    INT64,
    Added,
    PositionedBuilder,
    assert_stays_on_islands,
    attributes,
    miss_reason,
    with_added,
)

SLOPES = (0.5, 0.25, 0.125, 0.0625)
LAST = 6  # the distance from which buckets no longer change


def bias_of(result: RewriteResult) -> np.ndarray:
    """The table or the slopes of the model's only attention."""
    node = next(node for node in result.model.graph.node if node.op_type == "PadfreeAttention")
    names = [spec.name for spec in OPERATORS["PadfreeAttention"].inputs_for({**attributes(result)[0], **_text(result)})]
    index = next(i for i, name in enumerate(names) if name in ("slopes", "distance_bias"))
    constants = {item.name: item for item in result.model.graph.initializer}
    return np.asarray(numpy_helper.to_array(constants[node.input[index]]))


def _text(result: RewriteResult) -> dict[str, str]:
    return {key: value.decode() for key, value in attributes(result)[0].items() if isinstance(value, bytes)}


def _bucket(b: PositionedBuilder, distance: str) -> str:
    """T5's buckets, by logarithms, [1,H,S,S]: 0, 1, then coarser up to 5, and 6 more for keys ahead."""
    ahead = b.op("Mul", b.op("Cast", b.op("Greater", distance, b.number(0)), to=INT64), b.number(4))
    far = b.op("Abs", distance)
    ratio = b.op("Log", b.op("Div", b.op("Cast", far, to=FLOAT), b.constant(2.0)))
    coarse = b.op("Mul", b.op("Div", ratio, b.constant(math.log(LAST / 2))), b.constant(2.0))
    coarse = b.op("Min", b.op("Add", b.op("Cast", coarse, to=INT64), b.number(2)), b.number(3))
    bucket = b.op("Add", ahead, b.op("Where", b.op("Less", far, b.number(2)), far, coarse))
    result = b.op("Transpose", b.op("Gather", b.weight(8, HEADS), bucket), perm=[2, 0, 1])
    return b.op("Unsqueeze", result, b.axes(0))


def _buckets(b: PositionedBuilder) -> list[str]:
    return [_bucket(b, b.distance()), b.padding_mask()]


def _with_the_mask(b: PositionedBuilder) -> list[str]:
    return [b.op("Add", _bucket(b, b.distance()), b.padding_mask())]


def _under_the_mask(b: PositionedBuilder) -> list[str]:
    return [b.op("Where", b.kept_keys(), _bucket(b, b.distance()), b.constant(-10000.0))]


def _clip_distances(b: PositionedBuilder) -> list[str]:
    """A row for every distance between -2 and 2, plus a constant per head, which has no effect."""
    row = b.op("Add", b.op("Clip", b.distance(), b.number(-2), b.number(2)), b.number(2))
    result = b.op("Transpose", b.op("Gather", b.weight(5, HEADS), row), perm=[2, 0, 1])
    return [b.padding_mask(), b.op("Add", b.op("Mul", result, b.constant(2.0)), b.weight(HEADS, 1, 1))]


@pytest.mark.parametrize(
    ("added", "reach"), [(_buckets, LAST), (_with_the_mask, LAST), (_under_the_mask, LAST), (_clip_distances, 2)]
)
def test_tables(added: Added, reach: int) -> None:
    model = with_added(added)
    result = rewrite(model, strict=True)
    (actual,) = attributes(result)
    assert actual["bias"] == b"distance"
    assert actual["bias_range"] <= reach
    assert bias_of(result).shape == (HEADS, 2 * actual["bias_range"] + 1)
    assert_agree(model, result)
    padded = rewrite(model, interface="padded")
    assert "has a bias by distance: under a mask with holes" in miss_reason(padded)
    assert_agree(model, padded)


def test_layers_share_a_table() -> None:
    b = PositionedBuilder()
    x = b.embedding()
    bias = _bucket(b, b.distance())
    for _ in range(2):
        x = b.attend(x, b.split(x), b.split(x), b.split(x), bias, b.padding_mask())
    result = rewrite(with_output(x, b, TOKENS), strict=True)
    nodes = [node for node in result.model.graph.node if node.op_type == "PadfreeAttention"]
    assert len(nodes) == 2
    assert nodes[0].input[-1] == nodes[1].input[-1]


def _by_slopes(b: PositionedBuilder) -> list[str]:
    far = b.op("Cast", b.op("Abs", b.distance()), to=FLOAT)
    return [b.padding_mask(), b.op("Mul", far, b.constant(-np.reshape(SLOPES, (1, HEADS, 1, 1))))]


def _of_a_buffer(b: PositionedBuilder) -> list[str]:
    """A slice of a constant for all distances, as in MosaicBERT."""
    far = np.abs(np.arange(POSITIONS)[None] - np.arange(POSITIONS)[:, None])
    buffer = b.constant(-np.reshape(SLOPES, (1, HEADS, 1, 1)) * far)
    length = b.op("Shape", "input_ids", start=1)
    ends = b.op("Concat", length, length, axis=0)
    return [b.op("Add", b.op("Slice", buffer, b.axes(0, 0), ends, b.axes(2, 3)), b.padding_mask())]


@pytest.mark.parametrize("added", [_by_slopes, _of_a_buffer])
def test_slopes(added: Added) -> None:
    model = with_added(added)
    result = rewrite(model, strict=True)
    assert attributes(result)[0]["bias"] == b"slope"
    np.testing.assert_allclose(bias_of(result), SLOPES, rtol=1e-6)
    assert_agree(model, result)


def _of_positions(b: PositionedBuilder) -> list[str]:
    """A row for every sum of positions."""
    row = b.op("Min", b.op("Add", b.steps(0), b.steps(1)), b.number(7))
    return [b.padding_mask(), b.op("Transpose", b.op("Gather", b.weight(8, HEADS), row), perm=[2, 0, 1])]


def _of_ids(b: PositionedBuilder) -> list[str]:
    """A row for every distance between ids."""
    far = b.op("Sub", *(b.op("Unsqueeze", "input_ids", b.axes(axis)) for axis in (1, 2)))
    row = b.op("Min", b.op("Abs", far), b.number(7))
    return [b.padding_mask(), b.op("Transpose", b.op("Gather", b.weight(8, HEADS), row), perm=[0, 3, 1, 2])]


def _of_squares(b: PositionedBuilder) -> list[str]:
    """Neither linear nor constant from some distance on."""
    far = b.op("Cast", b.distance(), to=FLOAT)
    return [b.padding_mask(), b.op("Mul", b.op("Mul", far, far), b.constant(-0.01))]


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        (_of_positions, "is added to the scores of any tokens"),
        (_of_ids, "adds two tensors of which neither is a mask"),
        (_of_squares, "still changes at a distance of 65536"),
    ],
)
def test_other_biases_stay_on_islands(added: Added, reason: str) -> None:
    assert_stays_on_islands(with_added(added), reason)


def test_every_distance_of_a_limited_model_is_in_its_table() -> None:
    """A bias that changes at every distance becomes a table if a table of positions limits sequences."""
    b = PositionedBuilder()
    words = b.op("Gather", b.weight(VOCABULARY, HIDDEN), "input_ids")
    positions = b.op("Gather", b.weight(POSITIONS, HIDDEN), b.steps(0))
    x = b.norm(b.op("Add", words, positions))
    model = with_output(b.attend(x, b.split(x), b.split(x), b.split(x), *_of_squares(b)), b, TOKENS)
    result = rewrite(model, strict=True)
    assert attributes(result)[0]["bias_range"] == POSITIONS - 1
    assert_agree(model, result)
