# SPDX-License-Identifier: Apache-2.0
"""RotaryEmbedding of opset 23 with tables [1,S,D/2] for the whole batch, as dynamo writes transformers' rotations."""

from __future__ import annotations

import pytest
from onnx import ModelProto
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.importing.canonical import runnable

from tests.support.encoder import HIDDEN, VOCABULARY
from tests.support.exports import Input, assert_right
from tests.support.mask_models import FLOAT, Builder

INPUTS = [Input("input_ids", "ids", high=VOCABULARY), Input("attention_mask", "mask")]


def encoder() -> ModelProto:
    """Q and K are rotated by angles computed from the positions."""
    b = Builder()
    x = b.embedding()
    length = b.op("Squeeze", b.op("Shape", "input_ids", start=1))
    positions = b.op("Cast", b.op("Range", b.number(0), length, b.number(1)), to=FLOAT)
    angles = b.op("Mul", b.op("Unsqueeze", positions, b.axes(0, 2)), b.constant([[[1.0, 0.3, 0.1, 0.02]]]))
    tables = b.op("Cos", angles), b.op("Sin", angles)
    q, k, v = (b.heads(b.linear(x, HIDDEN, HIDDEN), [0, 2, 1, 3]) for _ in range(3))
    q, k = (b.op("RotaryEmbedding", item, *tables) for item in (q, k))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = b.op("Softmax", b.op("Add", scores, b.padding_mask()), axis=-1)
    context = b.op("Transpose", b.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    b.op("Identity", b.norm(b.op("Add", b.op("Reshape", context, b.axes(0, 0, HIDDEN)), x)), output="y")
    return b.model({"y": ["batch", "sequence", HIDDEN]}, opset=23)


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_tables_of_one_row_are_spread_over_the_batch(interface: str) -> None:
    """Verification has to run the original on several sequences in onnxruntime."""
    result = (
        assert_right(encoder(), INPUTS, interface, strict=True)
        if interface == "packed"
        else rewrite(encoder(), interface=interface, strict=True)
    )
    assert result.report.plugins["PadfreeRotary"] == 1


def test_tables_are_spread_once() -> None:
    once = runnable(encoder())
    assert sum(node.op_type == "Expand" for node in once.graph.node) == 2
    assert runnable(once) is once
