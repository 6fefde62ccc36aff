# SPDX-License-Identifier: Apache-2.0
"""Attention over sequences whose lengths are not the inputs': padded inside the model, or traced with a number."""

from __future__ import annotations

import pytest
from onnx import ModelProto
from padfree.onnx_tools import RewriteError, rewrite

from tests.support.encoder import HEADS, HIDDEN, VOCABULARY
from tests.support.exports import Input, assert_right
from tests.support.mask_models import FLOAT, Builder

INTERFACES = ("packed", "padded")
INPUTS = [Input("input_ids", "ids", high=VOCABULARY), Input("attention_mask", "mask")]
MORE = 4


def padded_inside() -> ModelProto:
    """An encoder that pads ids and mask itself, and cuts its result back to the inputs' length."""
    b = Builder()
    ids, mask = (b.op("Pad", name, b.axes(0, 0, 0, MORE)) for name in ("input_ids", "attention_mask"))
    x = b.norm(b.op("Gather", b.weight(VOCABULARY, HIDDEN), ids))
    kept = b.op("Cast", b.key(mask), to=FLOAT)
    hidden = b.layer(x, b.op("Mul", b.op("Sub", b.constant(1.0), kept), b.constant(-1e4)))
    b.op("Slice", hidden, b.axes(0), b.op("Shape", "input_ids", start=1), b.axes(1), output="y")
    return b.model({"y": ["batch", "sequence", HIDDEN]})


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_model_that_pads_its_inputs_itself(interface: str) -> None:
    """It is refused for that, not for padding; with the mask named, its attention stays as it is, and is right."""
    with pytest.raises(
        RewriteError, match=r"over sequences of S \+ 4 slots, where the inputs have S.*--mask attention_mask"
    ):
        rewrite(padded_inside(), interface=interface)
    assert_right(padded_inside(), INPUTS, interface, mask="attention_mask")


def trace(length: int) -> ModelProto:
    """As TorchScript exports nn.TransformerEncoder: the number of keys is the number of tokens in the trace."""
    b = Builder()
    x = b.embedding()
    size = HIDDEN // HEADS
    q = b.heads(b.linear(x, HIDDEN, HIDDEN), [0, 2, 1, 3])
    shape = b.op("Concat", b.op("Shape", "input_ids", end=1), b.axes(length, HEADS, size), axis=0)
    k, v = (b.op("Reshape", b.linear(x, HIDDEN, HIDDEN), shape) for _ in range(2))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 3, 1]))
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), b.op("Transpose", v, perm=[0, 2, 1, 3]))
    b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.axes(0, 0, HIDDEN), output="y")
    return b.model({"y": ["batch", "sequence", HIDDEN]})


def test_a_length_that_was_traced_is_named() -> None:
    with pytest.raises(RewriteError, match=r"7 columns.*traced with 7 tokens.*dynamo=True"):
        rewrite(trace(7))


def test_a_softmax_over_classes_is_no_traced_length() -> None:
    b = Builder()
    b.op("Softmax", b.linear(b.embedding(), HIDDEN, 7), axis=-1, output="y")
    with pytest.raises(RewriteError, match=r"no Softmax is over \[\.\.\., sequence, sequence\]"):
        rewrite(b.model({"y": ["batch", "sequence", 7]}))
