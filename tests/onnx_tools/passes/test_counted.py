# SPDX-License-Identifier: Apache-2.0
"""Positions that count ids or the mask, wherever they are read: packed tokens get their positions in the sequence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, POSITIONS, TOKENS, VOCABULARY, EncoderBuilder, with_output

PADDING = VOCABULARY - 1
INT64 = TensorProto.INT64


def number(b: EncoderBuilder, value: int) -> str:
    return b.constant(value, np.int64)


def running_sum(b: EncoderBuilder, kept: str, **attributes: int) -> str:
    return b.op("CumSum", kept, number(b, 1), **attributes)


def differs(b: EncoderBuilder, value: int) -> str:
    """int64 [B,S]: 1 for other ids."""
    return b.op("Cast", b.op("Not", b.op("Equal", "input_ids", number(b, value))), to=INT64)


def by_ids(b: EncoderBuilder) -> str:
    """As in XLM-RoBERTa-XL and M2M-100."""
    kept = differs(b, PADDING)
    return b.op("Add", b.op("Mul", running_sum(b, kept), kept), number(b, 1))


def by_mask(b: EncoderBuilder) -> str:
    """As in OPT: cumsum(mask) * mask - 1 + 2."""
    counted = b.op("Mul", running_sum(b, "attention_mask"), "attention_mask")
    return b.op("Add", b.op("Sub", counted, number(b, 1)), number(b, 2))


def fill(b: EncoderBuilder) -> str:
    """As wrappers of decoders compute them: 1 in masked slots."""
    masked = b.op("Equal", "attention_mask", number(b, 0))
    return b.op("Where", masked, number(b, 1), b.op("Sub", running_sum(b, "attention_mask"), number(b, 1)))


def exclusive(b: EncoderBuilder) -> str:
    """How many tokens come before each."""
    return running_sum(b, "attention_mask", exclusive=1)


def encoder(positions: Callable[[EncoderBuilder], str]) -> ModelProto:
    """Look-ups by words and positions without a norm after them."""
    b = EncoderBuilder()
    words = b.op("Gather", b.weight(VOCABULARY, HIDDEN), "input_ids")
    indices = b.op("Gather", b.weight(POSITIONS, HIDDEN), positions(b))
    return with_output(b.layer(b.op("Add", words, indices), b.padding_mask()), b, TOKENS)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", [by_ids, by_mask, fill, exclusive])
def test_counted_positions_are_those_of_tokens(form: Callable[[EncoderBuilder], str], interface: str) -> None:
    model = encoder(form)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.excluded_ids == ({"input_ids": (PADDING,)} if (form, interface) == (by_ids, "packed") else {})
    if interface == "packed":
        assert "CumSum" not in {node.op_type for node in result.model.graph.node}
    assert_agree(model, result, limit=PADDING)


def without_separators(b: EncoderBuilder) -> str:
    """An id that is not counted but gets a different number at every position is not padding."""
    return running_sum(b, differs(b, 3))


def number_tokens(b: EncoderBuilder) -> str:
    """Only tokens with one id are counted, so all others would be padding."""
    kept = b.op("Cast", b.op("Equal", "input_ids", number(b, 3)), to=INT64)
    return b.op("Mul", running_sum(b, kept), kept)


def special(b: EncoderBuilder) -> str:
    """Ids below 4 are not counted: several of them may occur in sequences."""
    kept = b.op("Cast", b.op("Greater", "input_ids", number(b, 3)), to=INT64)
    return b.op("Mul", running_sum(b, kept), kept)


def backward(b: EncoderBuilder) -> str:
    """How many tokens come after each."""
    return b.op("Mul", running_sum(b, "attention_mask", reverse=1, exclusive=1), "attention_mask")


@pytest.mark.parametrize("form", [without_separators, number_tokens, special, backward])
def test_what_counts_otherwise_stays_as_it_is(form: Callable[[EncoderBuilder], str]) -> None:
    model = encoder(form)
    result = rewrite(model)
    assert not result.report.excluded_ids
    assert "CumSum" in {node.op_type for node in result.model.graph.node}
    assert_agree(model, result)


def test_an_output_that_counts_stays_an_output() -> None:
    """Its readers get positions nevertheless."""
    b = EncoderBuilder()
    words = b.op("Gather", b.weight(VOCABULARY, HIDDEN), "input_ids")
    counted = fill(b)
    x = b.op("Add", words, b.op("Gather", b.weight(POSITIONS, HIDDEN), counted))
    b.op("Cast", counted, to=TensorProto.FLOAT, output="places")
    b.op("Identity", b.layer(x, b.padding_mask()), output="y")
    model = b.model({"y": TOKENS, "places": TOKENS[:2]})
    result = rewrite(model)
    assert result.report.outputs == {"y": "packed", "places": "packed"}
    assert_agree(model, result)
