# SPDX-License-Identifier: Apache-2.0
"""The Attention operator of opset 23 with a mask [B,1,1,S], as dynamo exports scaled_dot_product_attention."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, shape_inference
from padfree.onnx_tools import rewrite

from tests.support.encoder import HIDDEN, VOCABULARY
from tests.support.exports import (
    Input,
    assert_valid,
    compare,
    metadata_of,
    packed_feeds,
    padded_feeds,
    sequences,
    session,
    truth,
)
from tests.support.mask_models import Builder

INPUTS = [Input("input_ids", "ids", high=VOCABULARY), Input("attention_mask", "mask")]


def encoder(*, rows: bool) -> ModelProto:
    """Attention whose mask has one row for all queries, or with `rows` an equal row for each."""
    b = Builder()
    x, mask = b.embedding(), b.add_mask(b.op("Equal", "attention_mask", b.number(1)))
    if rows:
        length = b.op("Shape", "input_ids", start=1)
        mask = b.op("Expand", mask, b.op("Concat", length, b.axes(1), axis=0))
    q, k, v = (b.heads(b.linear(x, HIDDEN, HIDDEN), [0, 2, 1, 3]) for _ in range(3))
    context = b.op("Attention", q, k, v, mask)
    joined = b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.axes(0, 0, HIDDEN))
    b.op("Identity", b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x)), output="y")
    model = b.model({"y": ["batch", "sequence", HIDDEN]}, opset=23)
    return shape_inference.infer_shapes(model)


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_a_mask_of_one_row_is_spread_over_all_queries(interface: str) -> None:
    model = encoder(rows=False)
    result = rewrite(model, interface=interface)  # verification runs the original in onnxruntime
    assert_valid(result.model)
    assert result.report.complete
    requests, metadata = sequences(INPUTS), metadata_of(result)
    feeds = (
        packed_feeds(metadata, requests) if interface == "packed" else padded_feeds(model, INPUTS, requests, left=False)
    )
    actual = session(result.model).run(["y"], feeds)
    compare(
        metadata,
        requests,
        truth(encoder(rows=True), requests, ["y"]),
        [np.asarray(item) for item in actual],
        left=False,
    )
