# SPDX-License-Identifier: Apache-2.0
"""Position embeddings, however their rows are taken: packed tokens get the rows of their positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HEADS, HIDDEN, POSITIONS, TOKENS, VOCABULARY, EncoderBuilder, with_output

from .position_forms import ROWS, length, scale, steps
from .token_forms import transpose

SIZE = HIDDEN // HEADS


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("with_norm", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_rows(rows: Callable[[EncoderBuilder], str], with_norm: bool, interface: str) -> None:
    """If a norm follows, they go into PadfreeEmbedding; if not, they are tensors of tokens like any other."""
    builder = EncoderBuilder()
    words = builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), "input_ids")
    total = builder.op("Add", words, rows(builder))
    hidden = builder.layer(builder.norm(total) if with_norm else total, builder.padding_mask())
    model = with_output(hidden, builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert ("PadfreeEmbedding" in result.report.plugins) == (with_norm and rows is not scale)
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_rotary_tables(interface: str) -> None:
    """Cosines and sines of all positions as constants, sliced to the length: [1,1,S,D] for heads [B,H,S,D]."""
    builder = EncoderBuilder()
    angles = np.outer(np.arange(POSITIONS), 0.5 ** np.arange(SIZE))

    def rows(values: np.ndarray) -> str:
        table = builder.constant(values)
        part = builder.op("Slice", table, builder.axes(0), length(builder), builder.axes(0))
        return builder.op("Unsqueeze", part, builder.axes(0, 1))

    def rotate(x: str) -> str:
        halves = [
            builder.op("Slice", x, builder.axes(i), builder.axes(i + SIZE // 2), builder.axes(3))
            for i in (0, SIZE // 2)
        ]
        other = builder.op("Concat", builder.op("Neg", halves[1]), halves[0], axis=-1)
        return builder.op(
            "Add", builder.op("Mul", x, rows(np.cos(angles))), builder.op("Mul", other, rows(np.sin(angles)))
        )

    x = builder.embedding()
    q, k, v = (builder.heads(builder.linear(x, HIDDEN, HIDDEN), [0, 2, 1, 3]) for _ in range(3))
    scores = builder.op("MatMul", rotate(q), transpose(builder, rotate(k), 0, 1, 3, 2))
    weights = builder.op("Softmax", builder.op("Add", scores, builder.padding_mask()), axis=-1)
    context = transpose(builder, builder.op("MatMul", weights, v), 0, 2, 1, 3)
    model = with_output(builder.op("Reshape", context, builder.axes(0, 0, HIDDEN)), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)


def test_rows_from_the_end_are_no_positions() -> None:
    """The first slot gets row S - 1: which row a token gets depends on the padded length."""
    builder = EncoderBuilder()
    words = builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), "input_ids")
    last = builder.op("Sub", builder.op("Squeeze", length(builder)), builder.constant(1, np.int64))
    rows = builder.op("Gather", builder.weight(POSITIONS, HIDDEN), builder.op("Sub", last, steps(builder)))
    hidden = builder.layer(builder.norm(builder.op("Add", words, rows)), builder.padding_mask())
    model = with_output(hidden, builder, TOKENS)
    result = rewrite(model, interface="padded", verify=False)  # the longest batch that the rows allow is unknown
    assert "PadfreeEmbedding" not in result.report.plugins
    assert_agree(model, result)
