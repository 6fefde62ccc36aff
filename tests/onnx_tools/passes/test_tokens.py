# SPDX-License-Identifier: Apache-2.0
"""Layers on [B*S,E], [S,B,E] and the like: everything is packed, just as for layers on [B,S,E]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, TOKENS, VOCABULARY, EncoderBuilder, one_layer, with_output

from .token_forms import FORMS, reshape, transpose

both = pytest.mark.parametrize("interface", INTERFACES)


@both
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, interface: str) -> None:
    builder, hidden = one_layer()
    model = with_output(FORMS[form](builder, FORMS[form](builder, hidden)), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 3
    assert_agree(model, result)


@both
def test_flat_ids(interface: str) -> None:
    """Rows of a table by ids [B*S], times 0.5 where the mask [B*S,1] keeps a token."""
    builder, hidden = one_layer()
    ids = builder.op("Reshape", "input_ids", builder.axes(-1))
    rows = builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), ids)
    mask = builder.op("Cast", builder.op("Reshape", "attention_mask", builder.axes(-1, 1)), to=TensorProto.FLOAT)
    rows = builder.op("Mul", rows, builder.op("Mul", mask, builder.constant(0.5)))
    model = with_output(builder.op("Add", hidden, reshape(builder, rows, "B", "S", HIDDEN)), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)


def beside_tokens(b: EncoderBuilder, x: str) -> str:
    """Norms, sums, parts and joins on [S*B,E]."""
    rows = reshape(b, transpose(b, x, 1, 0, 2), "S*B", HIDDEN)
    low, high = (b.op("Slice", rows, b.axes(i), b.axes(i + HIDDEN // 2), b.axes(1)) for i in (0, HIDDEN // 2))
    swapped = b.op("Softmax", b.op("Concat", high, b.op("Neg", low), axis=1), axis=-1)
    total = b.op("ReduceSum", rows, b.axes(1), keepdims=0)
    spread = b.op("Mul", swapped, b.op("Unsqueeze", total, b.axes(1)))
    picked = b.op("Gather", spread, b.axes(*range(HIDDEN)[::-1]), axis=1)
    return transpose(b, reshape(b, picked, "S", "B", HIDDEN), 1, 0, 2)


def wide_and_narrow(b: EncoderBuilder, x: str) -> str:
    """A column [S,B,1] times a row, and a split along the width."""
    transposed = transpose(b, x, 1, 0, 2)
    column = b.op("ReduceMax", transposed, axes=[-1], keepdims=1)
    grown = b.op("Mul", column, b.constant(np.linspace(0.5, 1.5, HIDDEN)))
    parts = [f"part{len(b.nodes)}", f"other{len(b.nodes)}"]
    b.op("Split", grown, axis=2, output=parts[0])
    b.nodes[-1].output.append(parts[1])
    joined = b.op("Concat", parts[1], parts[0], axis=-1)
    return transpose(b, b.op("MatMul", joined, b.weight(HIDDEN, HIDDEN)), 1, 0, 2)


@both
@pytest.mark.parametrize("work", [beside_tokens, wide_and_narrow])
def test_work_beside_the_tokens(work: Callable[[EncoderBuilder, str], str], interface: str) -> None:
    builder, hidden = one_layer()
    model = with_output(work(builder, hidden), builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)


@both
def test_what_mixes_rows_stays(interface: str) -> None:
    """Running sums of masked rows along [B*S] cross from one sequence to the next; a product before them is packed."""
    builder, hidden = one_layer()
    rows = builder.op("Tanh", builder.op("Gemm", reshape(builder, hidden, "B*S", HIDDEN), builder.weight(HIDDEN, 4)))
    mask = builder.op("Cast", builder.op("Reshape", "attention_mask", builder.axes(-1, 1)), to=TensorProto.FLOAT)
    sums = builder.op("CumSum", builder.op("Mul", rows, mask), builder.constant(0, np.int64))
    model = with_output(reshape(builder, sums, "B", "S", 4), builder, ["batch", "sequence", 4])
    result = rewrite(model, interface=interface)
    assert any("CumSum" in item.reason for item in result.report.islands)
    assert not any("MatMul" in item.reason for item in result.report.islands)
    assert_agree(model, result)
