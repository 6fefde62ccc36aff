# SPDX-License-Identifier: Apache-2.0
"""Reductions over the tokens of a sequence are packed if masked slots do not contribute, or else refused."""

from __future__ import annotations

import numpy as np
import pytest
from padfree.onnx_tools import RewriteError, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, one_layer, with_output

from .sum_forms import BY_COUNT, EXACT, Form, column, score, total


def modes(report_model: object) -> set[str]:
    nodes = report_model.graph.node  # type: ignore[attr-defined]
    return {
        attribute.s.decode()
        for node in nodes
        if node.op_type == "PadfreePool"
        for attribute in node.attribute
        if attribute.name == "mode"
    }


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", EXACT)
def test_sums_of_tokens_are_packed(name: str, interface: str) -> None:
    form, mode = EXACT[name]
    builder, hidden = one_layer()
    model = with_output(form(builder, hidden), builder, ["batch", HIDDEN])
    result = rewrite(model, interface=interface, strict=True)
    assert mode in modes(result.model)
    assert "PadfreeUnpack" not in result.report.plugins
    only = "prefix" if name == "position" else None
    assert_agree(model, result, only=only, tolerance=1e-4)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", BY_COUNT)
def test_packed_where_right_padded(name: str, interface: str) -> None:
    """The slot with the number of kept tokens minus one is the last of them only in right-padded batches.

    The last layer is computed only for these tokens; the model's own pool then takes each remaining row.
    """
    builder, hidden = one_layer()
    model = with_output(BY_COUNT[name](builder, hidden), builder, ["batch", HIDDEN])
    result = rewrite(model, interface=interface, strict=True)
    assert modes(result.model) == {"last", "each"}
    assert result.report.right_padded_only
    assert_agree(model, result, only="prefix")


def unmasked_sum(b: EncoderBuilder, x: str) -> str:
    return b.op("ReduceSum", x, b.axes(1), keepdims=0)


def unmasked_maximum(b: EncoderBuilder, x: str) -> str:
    """Numbers may be negative, and then a masked slot's 0 is the largest."""
    return b.op("ReduceMax", b.op("Mul", x, column(b)), axes=[1], keepdims=0)


def weakly_masked_softmax(b: EncoderBuilder, x: str) -> str:
    row = b.op("Mul", score(b, x), column(b))
    return total(b, x, b.op("Softmax", row, axis=1))


def mask_of_nine(b: EncoderBuilder, x: str) -> str:
    """A weight that is 1 in masked slots."""
    return total(b, x, b.op("Add", column(b), b.constant(1.0)))


@pytest.mark.parametrize("form", [unmasked_sum, weakly_masked_softmax, mask_of_nine])
def test_padding_that_is_read_is_refused(form: Form) -> None:
    builder, hidden = one_layer()
    model = with_output(form(builder, hidden), builder, ["batch", HIDDEN])
    with pytest.raises(RewriteError, match="depends on padding"):
        rewrite(model)


def test_maximum_with_zeros_stays() -> None:
    """It includes the zeros of masked slots if there are any, but packed sequences have none."""
    builder, hidden = one_layer()
    model = with_output(unmasked_maximum(builder, hidden), builder, ["batch", HIDDEN])
    result = rewrite(model, interface="padded")
    assert "PadfreePool" not in result.report.plugins
    assert_agree(model, result)
    with pytest.raises(RewriteError, match="ReduceMax"):
        rewrite(model)


@pytest.mark.parametrize("interface", INTERFACES)
def test_other_tokens_stay(interface: str) -> None:
    """PadfreePool cannot take the token before the last one."""
    builder, hidden = one_layer()
    two = builder.constant(2, np.int64)
    index = builder.op("Sub", builder.op("ReduceSum", "attention_mask", builder.axes(1), keepdims=1), two)
    index = builder.op("Max", index, builder.constant(0, np.int64))
    model = with_output(builder.op("GatherND", hidden, index, batch_dims=1), builder, ["batch", HIDDEN])
    result = rewrite(model, interface=interface)
    assert "PadfreePool" not in result.report.plugins
    assert_agree(model, result, only="prefix")


def test_first_slot_that_tokens_read() -> None:
    """With left padding it is a masked slot: the report says that masks must be right-padded, and why."""
    builder, hidden = one_layer()
    first = builder.op("Slice", hidden, builder.axes(0), builder.axes(1), builder.axes(1))
    wide = builder.op(
        "Expand", first, builder.op("Concat", builder.op("Shape", "input_ids"), builder.axes(HIDDEN), axis=0)
    )
    joined = builder.op("Concat", hidden, wide, axis=2)
    model = with_output(builder.linear(joined, 2 * HIDDEN, HIDDEN), builder, TOKENS)
    result = rewrite(model, interface="padded", strict=True)
    assert any("takes slot 0, and tokens read it" in reason for reason in result.report.right_padded_because)
    assert_agree(model, result, only="prefix")
