# SPDX-License-Identifier: Apache-2.0
"""Originals whose mask leaks: that results depend on padding is the original's fault, and is reported as such."""

from __future__ import annotations

import pytest
from onnx import ModelProto
from padfree.onnx_tools import VerificationError, rewrite

from tests.onnx_tools.random_models.random_graphs import RandomGraph
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, with_output


def leaking_scores() -> ModelProto:
    """Scores of about 1e5 with a mask of -1e4, which leaves padding its weight."""
    builder = EncoderBuilder()
    hidden = builder.embedding()
    attended = builder.attention(hidden, builder.padding_mask(), scale=1e5)
    return with_output(builder.norm(builder.op("Add", attended, hidden)), builder, TOKENS)


def overflowing_padding() -> ModelProto:
    """Numbers that grow with the position overflow in padded slots, and 0 times infinity is not a number."""
    graph = RandomGraph()
    growth = graph.op("Exp", graph.op("Mul", graph.positions(), graph.constant(5.0)))
    pooled = graph.pool(graph.op("Mul", graph.op("Sigmoid", graph.tokens[1]), growth))
    return with_output(graph.op("Tanh", graph.op("Squeeze", pooled, graph.axes(1))), graph, ["batch", HIDDEN])


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("model", [leaking_scores(), overflowing_padding()], ids=["scores", "overflow"])
def test_an_original_that_depends_on_its_padding_is_refused_for_that(model: ModelProto, interface: str) -> None:
    with pytest.raises(VerificationError, match="the original's own answers depend on its padding") as caught:
        rewrite(model, interface=interface)
    assert "please report this" not in str(caught.value)
