# SPDX-License-Identifier: Apache-2.0
"""The standard's own operators for attention, rotary embeddings, norms and activations: packed like their parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import assert_agree
from tests.onnx_tools.evaluator import evaluate
from tests.support.encoder import HEADS, HIDDEN, POSITIONS, EncoderBuilder

SIZE = HIDDEN // HEADS
TOKENS = ["batch", "sequence", HIDDEN]
interfaces = pytest.mark.parametrize("interface", ["packed", "padded"])


def check(builder: EncoderBuilder, hidden: str, opset: int, interface: str) -> ModelProto:
    """Everything is packed, and results match the original, in onnxruntime and by the operators' definitions."""
    builder.op("Identity", hidden, output="y")
    model = builder.model({"y": TOKENS}, opset=opset)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.packed_gemm_share == 1.0
    assert_agree(model, result)
    assert_agree(model, result, run=evaluate)
    return result.model


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


class Rms(EncoderBuilder):
    """RMS norms by the operator of opset 23."""

    def norm(self, x: str, width: int = HIDDEN) -> str:
        return self.op("RMSNormalization", x, self.weight(width, center=1.0), axis=-1, epsilon=1e-5)


class WrittenOut(EncoderBuilder):
    """Layer norms as written for opsets below 17."""

    def norm(self, x: str, width: int = HIDDEN) -> str:
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Mul", centred, centred), axes=[-1])
        root = self.op("Sqrt", self.op("Add", variance, self.constant(1e-5)))
        scaled = self.op("Mul", self.op("Div", centred, root), self.weight(width, center=1.0))
        return self.op("Add", scaled, self.weight(width))


@interfaces
@pytest.mark.parametrize(
    ("builder", "opset"), [(WrittenOut, 14), (WrittenOut, 16), (EncoderBuilder, 17), (EncoderBuilder, 23), (Rms, 23)]
)
def test_norms(builder: Callable[[], EncoderBuilder], opset: int, interface: str) -> None:
    b = builder()
    model = check(b, b.layer(b.layer(b.embedding(), b.padding_mask()), b.padding_mask()), opset, interface)
    assert not {"LayerNormalization", "RMSNormalization", "ReduceMean"} & set(operators(model))


@interfaces
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("opset", [20, 23])
def test_gelu(approximate: str, opset: int, interface: str) -> None:
    b = EncoderBuilder()
    x = b.layer(b.embedding(), b.padding_mask())
    check(b, b.norm(b.op("Gelu", b.linear(x, HIDDEN, HIDDEN), approximate=approximate)), opset, interface)


def float_mask(b: EncoderBuilder) -> str:
    """A mask of 0 and -10000, [B,1,S,S]."""
    length = b.op("Shape", "input_ids", start=1)
    shape = b.op("Concat", b.op("Shape", "input_ids", end=1), b.axes(1), length, length, axis=0)
    return b.op("Expand", b.padding_mask(), shape)


def bool_mask(b: EncoderBuilder) -> str:
    """A boolean mask of the kept keys, [B,1,S,S]."""
    return b.op("Equal", float_mask(b), b.constant(0.0))


def rotate(b: EncoderBuilder, x: str, form: str) -> str:
    """RotaryEmbedding of heads [B,H,S,D], or of [B,S,H*D]."""
    angles = np.arange(POSITIONS)[:, None] * np.linspace(0.1, 1.0, SIZE // 2)
    caches = b.constant(np.cos(angles)), b.constant(np.sin(angles))
    length = b.op("Squeeze", b.op("Shape", "input_ids", start=1))
    steps = b.op("Range", b.constant(0, np.int64), length, b.constant(1, np.int64))
    positions = b.op("Expand", b.op("Unsqueeze", steps, b.axes(0)), b.op("Shape", "input_ids"))
    heads = {"num_heads": HEADS} if form == "rows" else {}
    if form == "by token":  # caches [B,S,D/2] after the look-up
        return b.op("RotaryEmbedding", x, *(b.op("Gather", cache, positions) for cache in caches), interleaved=0)
    return b.op("RotaryEmbedding", x, *caches, positions, interleaved=int(form == "interleaved"), **heads)


@interfaces
@pytest.mark.parametrize("mask", [bool_mask, float_mask])
@pytest.mark.parametrize("form", ["none", "heads", "interleaved", "rows", "by token"])
def test_attention_and_rotary_embedding(form: str, mask: Callable[[EncoderBuilder], str], interface: str) -> None:
    b = Rms()
    x = b.embedding()
    q, k, v = (b.linear(x, HIDDEN, HIDDEN) for _ in "qkv")
    if form == "rows":
        q, k = rotate(b, q, form), rotate(b, k, form)
        context = b.op("Attention", q, k, v, mask(b), q_num_heads=HEADS, kv_num_heads=HEADS)
    else:
        q, k, v = (b.heads(item, [0, 2, 1, 3]) for item in (q, k, v))
        if form != "none":
            q, k = rotate(b, q, form), rotate(b, k, form)
        context = b.op("Transpose", b.op("Attention", q, k, v, mask(b)), perm=[0, 2, 1, 3])
        context = b.op("Reshape", context, b.axes(0, 0, HIDDEN))
    model = check(b, b.norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x)), 23, interface)
    assert operators(model).count("PadfreeAttention") == 1


@interfaces
def test_local_functions_are_inlined(interface: str) -> None:
    b = EncoderBuilder()
    x = b.layer(b.embedding(), b.padding_mask())
    b.op("Identity", b.op("Twice", x, domain="local"), output="y")
    body = [helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Tanh", ["b"], ["c"])]
    function = helper.make_function("local", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 17)])
    nodes, b.nodes = b.nodes, []
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "s"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "s", HIDDEN])],
        b.constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
    onnx.checker.check_model(model)
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)
