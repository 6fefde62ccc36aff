# SPDX-License-Identifier: Apache-2.0
"""Look-ups ahead of a norm: with a factor, by further inputs, by numbers computed from these."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper
from padfree.onnx_tools import RewriteError, bind_inputs, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, POSITIONS, TOKENS, VOCABULARY, EncoderBuilder, with_output

from .attention_forms import miss_reason

FACTOR = 4.0


def position_rows(b: EncoderBuilder) -> str:
    """Rows by position, [1,S,E]."""
    length = b.op("Slice", b.op("Shape", "input_ids"), b.axes(1), b.axes(2), b.axes(0))
    slots = b.op("Slice", b.constant([range(POSITIONS)], np.int64), b.axes(0), length, b.axes(1))
    return b.op("Gather", b.weight(POSITIONS, HIDDEN), slots)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("factor", [1.0, FACTOR])
def test_rows_times_a_number(factor: float, interface: str) -> None:
    """As in BART and related models: the table is multiplied once instead."""
    b = EncoderBuilder()
    table = b.weight(VOCABULARY, HIDDEN)
    words = b.op("Mul", b.op("Gather", table, "input_ids"), b.constant(factor))
    x = b.norm(b.op("Add", words, position_rows(b)))
    model = with_output(b.layer(x, b.padding_mask()), b, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeEmbedding"] == 1
    assert "Mul" not in {node.op_type for node in result.model.graph.node}
    tables = [numpy_helper.to_array(item) for item in result.model.graph.initializer]
    before = next(numpy_helper.to_array(item) for item in model.graph.initializer if item.name == table)
    assert any(np.array_equal(item, before * np.float32(factor)) for item in tables)
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_table_that_is_read_elsewhere_is_not_multiplied(interface: str) -> None:
    """Otherwise there would be two such tables."""
    b = EncoderBuilder()
    table = b.weight(VOCABULARY, HIDDEN)
    words = b.op("Mul", b.op("Gather", table, "input_ids"), b.constant(FACTOR))
    x = b.layer(b.norm(b.op("Add", words, position_rows(b))), b.padding_mask())
    model = with_output(b.op("Add", x, b.op("Gather", table, "input_ids")), b, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert "PadfreeEmbedding" not in result.report.plugins
    assert "are multiplied by 4.0, and read elsewhere as they are" in miss_reason(result)
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_further_tables(interface: str) -> None:
    """Rows by inputs, by differences of inputs, and one row for all tokens, as in LayoutLM."""
    b = EncoderBuilder()
    names = ("left", "right", "top")
    rows = [b.op("Gather", b.weight(VOCABULARY, HIDDEN), name) for name in ("input_ids", *names)]
    apart = b.op("Abs", b.op("Sub", "right", "left"))
    zeros = b.op("Expand", b.constant(0, np.int64), b.op("Shape", "input_ids"))
    rows += [b.op("Gather", b.weight(size, HIDDEN), item) for size, item in ((VOCABULARY, apart), (2, zeros))]
    total = position_rows(b)
    for row in rows:
        total = b.op("Add", total, row)
    model = with_output(b.layer(b.norm(total), b.padding_mask()), b, TOKENS, *names)
    result = rewrite(model, interface=interface, strict=True)
    inputs = {item.name for item in result.model.graph.input}
    assert {"input_ids", *names} <= inputs
    assert "max_seqlen" not in inputs
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_norm_without_weights(interface: str) -> None:
    """As in I-BERT, and in Cohere, whose weight is multiplied in another type."""
    b = EncoderBuilder()
    total = b.op("Add", b.op("Gather", b.weight(VOCABULARY, HIDDEN), "input_ids"), position_rows(b))
    centred = b.op("Sub", total, b.op("ReduceMean", total, axes=[-1]))
    variance = b.op("ReduceMean", b.op("Mul", centred, centred), axes=[-1])
    x = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, b.constant(1e-5))))
    model = with_output(b.layer(x, b.padding_mask()), b, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeEmbedding"] == 1
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("row", [-3, -1, 1, 2])
def test_an_input_fixed_to_a_row_of_its_table(row: int, interface: str) -> None:
    """Numbers that are no row of the table are refused, with the rows that there are."""
    b = EncoderBuilder()
    types = b.op("Gather", b.weight(2, HIDDEN), "token_type_ids")
    words = b.op("Add", b.op("Gather", b.weight(VOCABULARY, HIDDEN), "input_ids"), types)
    x = b.norm(b.op("Add", words, position_rows(b)))
    original = with_output(b.layer(x, b.padding_mask()), b, TOKENS, "token_type_ids")
    model = bind_inputs(original, {"token_type_ids": row})
    if -2 <= row < 2:
        assert_agree(model, rewrite(model, interface=interface, strict=True))
        return
    with pytest.raises(RewriteError, match=rf"takes row {row} of '.*', which has rows 0\.\.1, .* give --fix a number"):
        rewrite(model, interface=interface)
