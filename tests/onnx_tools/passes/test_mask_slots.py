# SPDX-License-Identifier: Apache-2.0
"""Masks that are subtracted from the scores, and those that weights are multiplied by."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from padfree.onnx_tools import RewriteError, rewrite

from tests.support.encoder import HEADS, HIDDEN, VOCABULARY
from tests.support.exports import Input, assert_right
from tests.support.mask_models import FLOAT, Builder

INTERFACES = ("packed", "padded")
IDS = Input("input_ids", "ids", high=VOCABULARY)
MASK = Input("attention_mask", "mask")


@pytest.mark.parametrize("interface", INTERFACES)
def test_masks_and_biases_that_are_subtracted(interface: str) -> None:
    """scores - 1e9 * (1 - mask), and the same with slopes by distance: subtracting is adding the negative."""
    for has_bias in (False, True):
        b = Builder()
        masked = b.op("Sub", b.constant(1.0), b.op("Cast", b.key("attention_mask"), to=FLOAT))
        taken = b.op("Mul", masked, b.constant(1e9))
        if has_bias:
            length = b.op("Cast", b.op("Shape", "input_ids", start=1), to=FLOAT)
            steps = b.op("Range", b.constant(0.0), b.op("Squeeze", length), b.constant(1.0))
            apart = b.op("Sub", b.op("Unsqueeze", steps, b.axes(0)), b.op("Unsqueeze", steps, b.axes(1)))
            slopes = b.constant(np.linspace(0.1, 0.4, HEADS).reshape(HEADS, 1, 1))
            taken = b.op("Add", b.op("Mul", b.op("Abs", apart), slopes), taken)
        x = b.embedding()
        start = len(b.nodes)
        hidden = b.layer(x, taken)
        for node in b.nodes[start:]:
            if node.op_type == "Add" and taken in node.input:
                node.op_type = "Sub"
        b.op("Identity", hidden, output="y")
        model = b.model({"y": ["batch", "sequence", HIDDEN]})
        result = assert_right(model, [IDS, MASK], interface)
        packed = not has_bias or interface == "packed"  # with holes in masks, slots' distances are not tokens'
        assert result.report.plugins.get("PadfreeAttention", 0) == int(packed), str(result.report)


def weights_times_mask(epsilon: float | None, op: str = "Add") -> onnx.ModelProto:
    """softmax(scores) * mask, divided by its sum: no score is masked, and yet padding does not contribute.

    `op` combines the sum with epsilon, if there is one.
    """
    b = Builder()
    x, kept = b.embedding(), b.op("Cast", b.key("attention_mask"), to=FLOAT)
    hidden = b.layer(x, None)
    index = next(i for i, node in enumerate(b.nodes) if node.op_type == "Softmax")
    weights, end = b.nodes[index].output[0], len(b.nodes)
    reader = next(node for node in b.nodes if weights in node.input)
    zeroed = b.op("Mul", weights, kept)
    total = b.op("ReduceSum", zeroed, b.axes(-1), keepdims=1)
    reader.input[0] = b.op("Div", zeroed, total if epsilon is None else b.op(op, total, b.constant(epsilon)))
    b.nodes[index + 1 :] = [*b.nodes[end:], *b.nodes[index + 1 : end]]
    b.op("Identity", hidden, output="y")
    return b.model({"y": ["batch", "sequence", HIDDEN]})


@pytest.mark.parametrize("epsilon", [None, 1e-9])
@pytest.mark.parametrize("interface", INTERFACES)
def test_weights_times_a_mask_by_their_sum_prove_the_mask(interface: str, epsilon: float | None) -> None:
    result = assert_right(weights_times_mask(epsilon), [IDS, MASK], interface)
    assert result.report.plugins["PadfreeAttention"] == 1


def test_a_mask_that_weights_are_multiplied_by_is_told_and_may_be_named() -> None:
    """The divisor is a sum that no rule follows."""
    model = weights_times_mask(-1e-9, "Sub")
    for interface in INTERFACES:
        with pytest.raises(RewriteError, match="weights are multiplied by 'attention_mask'; name the mask"):
            rewrite(model, interface=interface)
    assert_right(model, [IDS, MASK], "packed", mask="attention_mask")
