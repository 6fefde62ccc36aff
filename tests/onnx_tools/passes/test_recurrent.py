# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers stay padded: they are right if padding comes after the tokens, or if they know the lengths."""

from __future__ import annotations

import pytest
from onnx import ModelProto, TensorProto
from padfree.onnx_tools import RewriteError, rewrite

from tests.support.encoder import HIDDEN, VOCABULARY
from tests.support.exports import Input, assert_right
from tests.support.mask_models import FLOAT, Builder

SIZE = 8
INPUTS = [Input("input_ids", "ids", high=VOCABULARY), Input("attention_mask", "mask")]


def recurrent(direction: str, *, knows_lengths: bool) -> ModelProto:
    """An encoder and an LSTM over its tokens, which are zeros where padded."""
    b = Builder()
    hidden = b.layer(b.embedding(), b.padding_mask())
    mask = b.op("Unsqueeze", b.op("Cast", "attention_mask", to=FLOAT), b.axes(2))
    x = b.op("Transpose", b.op("Mul", hidden, mask), perm=[1, 0, 2])
    ways = 1 if direction == "forward" else 2
    weights = [b.weight(ways, 4 * SIZE, HIDDEN), b.weight(ways, 4 * SIZE, SIZE), b.weight(ways, 8 * SIZE)]
    counts = b.op("ReduceSum", "attention_mask", b.axes(1), keepdims=0)
    lengths = b.op("Cast", counts, to=TensorProto.INT32) if knows_lengths else ""
    y = b.op("LSTM", x, *weights, lengths, hidden_size=SIZE, direction=direction)
    b.op("Reshape", b.op("Transpose", y, perm=[2, 0, 1, 3]), b.axes(0, 0, ways * SIZE), output="y")
    return b.model({"y": ["batch", "sequence", ways * SIZE]})


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize(
    ("direction", "knows_lengths"), [("forward", False), ("forward", True), ("bidirectional", True)]
)
def test_recurrent_layers_that_do_not_read_padding(direction: str, knows_lengths: bool, interface: str) -> None:
    result = assert_right(recurrent(direction, knows_lengths=knows_lengths), INPUTS, interface)
    assert result.report.plugins["PadfreeAttention"] == 1


def test_a_backward_direction_that_starts_in_padding_is_told_to_take_lengths() -> None:
    with pytest.raises(RewriteError, match=r"\(LSTM\) reads masked slots: .* give it the sequences' lengths"):
        rewrite(recurrent("bidirectional", knows_lengths=False))
