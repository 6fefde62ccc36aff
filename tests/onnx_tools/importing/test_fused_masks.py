# SPDX-License-Identifier: Apache-2.0
"""Masks by lengths, as fused attention uses them: key position < sum of the mask. Near misses are not padding masks."""

from __future__ import annotations

import numpy as np
import pytest
from padfree.onnx_tools import RewriteError, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import TOKENS, EncoderBuilder, one_layer, with_output

LOW = -10000.0


class ByLengths(EncoderBuilder):
    """Computes positions of keys (or queries), the number of kept tokens, and what is added to the scores."""

    def positions(self, axis: int) -> str:
        length = self.op("Squeeze", self.op("Shape", "input_ids", start=1))
        steps = self.op("Range", self.constant(0, np.int64), length, self.constant(1, np.int64))
        return self.op("Reshape", steps, self.axes(*(-1 if axis == i else 1 for i in range(4))))

    def lengths(self, over: int = 1) -> str:
        total = self.op("ReduceSum", self.op("Cast", "attention_mask", to=6), self.axes(over), keepdims=0)
        return self.op("Reshape", self.op("Cast", total, to=7), self.axes(-1, 1, 1, 1))

    def add_mask(self, kept: str) -> str:
        return self.op("Where", kept, self.constant(0.0), self.constant(LOW))


def less(b: ByLengths) -> str:
    return b.op("Less", b.positions(3), b.lengths())


def greater(b: ByLengths) -> str:
    return b.op("Greater", b.lengths(), b.positions(3))


def not_below(b: ByLengths) -> str:
    return b.op("Not", b.op("GreaterOrEqual", b.positions(3), b.lengths()))


def not_above(b: ByLengths) -> str:
    return b.op("Not", b.op("LessOrEqual", b.lengths(), b.positions(3)))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", [less, greater, not_below, not_above])
def test_lengths_are_a_padding_mask(form: object, interface: str) -> None:
    builder = ByLengths()
    mask = builder.add_mask(form(builder))  # type: ignore[operator]
    model = with_output(builder.layer(builder.embedding(), mask), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.right_padded_only
    assert_agree(model, result, only="prefix")


def test_other_masks_need_no_right_padding() -> None:
    builder, hidden = one_layer()
    assert not rewrite(with_output(hidden, builder, TOKENS)).report.right_padded_only


def one_too_many(b: ByLengths) -> str:
    return b.add_mask(b.op("LessOrEqual", b.positions(3), b.lengths()))


def shift(b: ByLengths) -> str:
    return b.add_mask(b.op("Less", b.op("Sub", b.positions(3), b.constant(1, np.int64)), b.lengths()))


def the_other_way(b: ByLengths) -> str:
    return b.add_mask(b.op("Greater", b.positions(3), b.lengths()))


def queries(b: ByLengths) -> str:
    return b.add_mask(b.op("Less", b.positions(2), b.lengths()))


def longer(b: ByLengths) -> str:
    return b.add_mask(b.op("Less", b.positions(3), b.op("Add", b.lengths(), b.constant(1, np.int64))))


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (one_too_many, "it depends on the key position"),
        (shift, "it depends on the key position"),
        (the_other_way, "it depends on the key position"),
        (queries, "it depends on the query position"),
        (longer, "it depends on the key position"),
    ],
)
def test_no_padding_mask(form: object, reason: str) -> None:
    builder = ByLengths()
    mask = form(builder)  # type: ignore[operator]
    model = with_output(builder.layer(builder.embedding(), mask), builder, TOKENS)
    with pytest.raises(RewriteError, match=reason):
        rewrite(model)


@pytest.mark.parametrize("interface", INTERFACES)
def test_lengths_as_numbers_stay_padded(interface: str) -> None:
    builder = ByLengths()
    number = builder.op("Cast", builder.lengths(), to=1)
    mask = builder.op("Mul", number, builder.op("Sub", builder.padding_mask(), builder.constant(1.0)))
    model = with_output(builder.layer(builder.embedding(), mask), builder, TOKENS)
    result = rewrite(model, interface=interface)
    missed = [miss.reason for item in result.report.passes if item.name == "attention" for miss in item.missed]
    assert len(missed) == 1
    assert "it depends on the sum of 'attention_mask' otherwise than as a number of keys" in missed[0]
    assert not result.report.right_padded_only
    assert_agree(model, result)
