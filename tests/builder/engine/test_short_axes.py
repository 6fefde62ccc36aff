# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions with an axis of size 1: the same numbers, from operands padded to size 2."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, parser
from padfree.builder.engine.lowering.short_axes import lengthen_short_axes
from padfree.onnx_tools import rewrite

from tests.support.families import FOLDER as FAMILIES
from tests.support.messages import leave, lower
from tests.support.rewritings import Rewritings

VOCABULARY = 64


def run(model: ModelProto, feeds: dict[str, np.ndarray], *more: str) -> list[np.ndarray]:
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in more)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def matmuls(model: ModelProto) -> list[onnx.NodeProto]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [node for node in model.graph.node if node.op_type == "MatMul" and weights.isdisjoint(node.input)]


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("family", ["modernbert_torchscript_sdpa", "t5_torchscript_eager", "deberta_v2_dynamo_eager"])
def test_padded_attention_gives_the_same(family: str, length: int, rewritings: Rewritings) -> None:
    model = rewritings.of_file(FAMILIES / f"{family}.onnx", "padded").model
    rng, mask = np.random.default_rng(0), np.ones((3, length), np.int64)
    feeds = {
        value.name: mask if "mask" in value.name else rng.integers(3, VOCABULARY, mask.shape)
        for value in model.graph.input
        if "type" not in value.name
    }
    feeds |= {value.name: 0 * mask for value in model.graph.input if "type" in value.name}
    wanted = run(model, feeds)
    assert matmuls(model)
    lower(lengthen_short_axes, model)
    results = [node.output[0] for node in matmuls(model)]
    actual, *inner = run(model, feeds, *results)
    np.testing.assert_allclose(actual, wanted[0], rtol=1e-5, atol=1e-5)
    assert all(min(value.shape[-2:]) >= 2 for value in inner)


def test_matmuls_of_half_precision_are_found() -> None:
    """Conversion casts operands, and lists no shapes for the results of its casts."""
    model = rewrite(
        FAMILIES / "modernbert_torchscript_sdpa.onnx", interface="padded", precision="fp16", verify=False
    ).model
    whole = rewrite(FAMILIES / "modernbert_torchscript_sdpa.onnx", interface="padded", verify=False).model
    lower(lengthen_short_axes, model)
    assert len(matmuls(model)) == len(matmuls(whole))
    padded = {name for node in model.graph.node if node.op_type == "Pad" for name in node.output}
    assert all(not padded.isdisjoint(node.input) for node in matmuls(model))


def test_sizes_that_are_fixed_are_left_alone() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
        g (float[B,4,1] x, float[B,1,4] y, float[B,S,4] z, float[4,4] w) => (float[B,4,4] o, float[B,S,4] p)
        { o = MatMul(x, y)  p = MatMul(z, w) }"""
    model = parser.parse_model(text)
    lower(leave, model)
    before = model.SerializeToString()
    lower(lengthen_short_axes, model)
    assert model.SerializeToString() == before
