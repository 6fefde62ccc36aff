# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings in the products that make Q and K: attention stays the same; what is not folded, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper
from padfree.onnx_tools.passes import PassResult
from padfree.onnx_tools.passes.linear.rotations import rotations
from padfree.onnx_tools.passes.norms.norm_folding import norm_folding

from . import packed_graphs
from .packed_graphs import WIDTH, PackedGraph, activations, operators, run_passes

TOKENS = 21
# Means of V with values around 3: Q and K are rounded to 11 bits once instead of twice.
FP16 = {"rtol": 0.0, "atol": 2e-2}


class RotaryGraph(PackedGraph):
    """A graph with rotary embeddings and attentions, too, and the inputs "positions" [T] and "cu_seqlens" [B+1]."""

    def rotary(self, x: str, heads: int, size: int, *, pairing: str = "half", frequencies: str = "") -> str:
        frequencies = frequencies or self.initializer(100.0 ** -np.linspace(0, 1, size // 2)[np.newaxis], "float32")
        inputs = [x, "positions", frequencies]
        return self.padfree("PadfreeRotary", "rotary", inputs, head_size=size, num_heads=heads, pairing=pairing)

    def attention(self, *qkv: str, heads: int, kv_heads: int = 0, size: int, layout: str = "") -> str:
        flags = {"has_qkv_bias": 0, "has_tasks": 0, "max_seq_len": 0, "window_left": 2, "window_right": -1}
        return self.padfree(
            "PadfreeAttention", "attention", [*qkv, "cu_seqlens"], **flags, num_heads=heads,
            num_kv_heads=kv_heads or heads, head_size=size, scale=0.3,
            qkv_layout=layout or ("3HD" if len(qkv) == 1 else "separate"), bias="none", bias_range=0,
            has_k_position=0, has_q_position=0, quantized=0, y_scale=1.0, early_lengths=0,
        )  # fmt: skip

    def inputs(self) -> list[ValueInfoProto]:
        sizes = {"positions": "T", "cu_seqlens": "B1"}
        numbers = [helper.make_tensor_value_info(name, TensorProto.INT32, [size]) for name, size in sizes.items()]
        return [*super().inputs(), *numbers]


def rotate(model: ModelProto, precision: str = "fp32", *, norms: bool = False) -> tuple[ModelProto, PassResult]:
    rewritten, results = run_passes(model, precision, rotations, *([norm_folding] if norms else []))
    assert all(result.replaced for result in results[1:])
    return rewritten, results[0]


def assert_same(model: ModelProto, rewritten: ModelProto, precision: str = "fp32") -> None:
    lengths = [9, 0, 1, 11]
    feeds = {
        "x": activations(TOKENS, precision),
        "positions": np.concatenate([np.arange(length) for length in lengths]).astype(np.int32),
        "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
    }
    packed_graphs.assert_same(model, rewritten, precision, feeds, FP16)


def features(model: ModelProto) -> list[int]:
    """How many columns each PadfreeLinear rotates."""
    return [item.i for node in model.graph.node for item in node.attribute if item.name == "rotary_features"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(2, 2, 32), (4, 4, 16), (4, 1, 16), (1, 1, 128), (6, 2, 48)])
def test_one_gemm_for_q_k_and_v(heads: int, kv_heads: int, size: int, pairing: str, precision: str) -> None:
    p = RotaryGraph(precision)
    qkv = p.linear("x", (heads + 2 * kv_heads) * size)
    rotated = p.rotary(qkv, heads + kv_heads, size, pairing=pairing)
    model = p.model(p.attention(rotated, heads=heads, kv_heads=kv_heads, size=size))
    rewritten, result = rotate(model, precision)
    assert (result, operators(rewritten)) == (PassResult("rotations", 1), ["Linear", "Attention"])
    assert features(rewritten) == [(heads + kv_heads) * size]
    assert rewritten.graph.node[0].output[0] == "rotary1_pairs"  # it is not a renamed tensor of the model
    assert_same(model, rewritten, precision)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_gemms_of_their_own(pairing: str) -> None:
    p = RotaryGraph()
    q = p.rotary(p.linear("x", 64), 4, 16, pairing=pairing)
    k = p.rotary(p.linear("x", 32, bias=""), 2, 16, pairing=pairing)
    model = p.model(p.attention(q, k, p.linear("x", 32), heads=4, kv_heads=2, size=16))
    rewritten, result = rotate(model)
    assert (result.replaced, operators(rewritten)) == (2, ["Linear"] * 3 + ["Attention"])
    assert features(rewritten) == [64, 32, 0]
    assert_same(model, rewritten)


def test_a_part_of_a_head() -> None:
    """Frequencies of 0 leave their pairs unchanged, and every layer has its own frequencies."""
    p = RotaryGraph()
    layers = []
    for theta in (10.0, 1000.0):
        frequencies = np.where(np.arange(16) < 4, theta ** -np.linspace(0, 1, 16), 0)
        rotated = p.rotary(p.linear("x", 192), 4, 32, frequencies=p.initializer(frequencies[np.newaxis], "float32"))
        layers.append(p.attention(rotated, heads=2, size=32))
    model = p.model(*layers)
    rewritten, result = rotate(model)
    assert (result.replaced, operators(rewritten)) == (2, ["Linear", "Attention"] * 2)
    assert_same(model, rewritten)


def test_layers_share_weights_and_frequencies() -> None:
    p = RotaryGraph()
    weight = p.constant(WIDTH, 192, scale=0.15)
    frequencies = p.initializer(10.0 ** -np.linspace(0, 1, 16)[np.newaxis], "float32")
    x, layers = "x", []
    for _ in range(2):
        rotated = p.rotary(p.linear(x, 192, weight=weight), 4, 32, frequencies=frequencies)
        layers.append(p.attention(rotated, heads=2, size=32))
        x = layers[-1]
    model = p.model(*layers)
    rewritten, result = rotate(model)
    assert result.replaced == 2
    gemms = [node for node in rewritten.graph.node if node.op_type == "PadfreeLinear"]
    assert gemms[0].input[1] == gemms[1].input[1]
    assert gemms[0].input[-1] == gemms[1].input[-1]
    assert_same(model, rewritten)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_norm_ahead_goes_into_the_gemm(precision: str) -> None:
    p = RotaryGraph(precision)
    rotated = p.rotary(p.linear(p.norm(p.linear("x")), 192), 4, 32)
    model = p.model(p.attention(rotated, heads=2, size=32))
    rewritten, _ = rotate(model, precision, norms=True)
    assert operators(rewritten) == ["Linear", "Linear", "Attention"]
    assert_same(model, rewritten, precision)


def small_heads(p: RotaryGraph) -> list[str]:
    return [p.attention(p.rotary(p.linear("x", 48), 4, 8), heads=2, size=8)]


def odd_heads(p: RotaryGraph) -> list[str]:
    return [p.attention(p.rotary(p.linear("x", 144), 4, 24), heads=2, size=24)]


def q_alone(p: RotaryGraph) -> list[str]:
    q = p.rotary(p.linear("x", 32), 2, 16)
    return [p.attention(q, p.linear("x", 32), p.linear("x", 32), heads=2, size=16)]


def q_alone_of_three(p: RotaryGraph) -> list[str]:
    return [p.attention(p.rotary(p.linear("x", 96), 2, 16), heads=2, size=16)]


def other_pairs(p: RotaryGraph) -> list[str]:
    q, k = (p.rotary(p.linear("x", 32), 2, 16, pairing=pairing) for pairing in ("half", "interleaved"))
    return [p.attention(q, k, p.linear("x", 32), heads=2, size=16)]


def read_elsewhere(p: RotaryGraph) -> list[str]:
    rotated = p.rotary(p.linear("x", 96), 4, 16)
    return [p.attention(rotated, heads=2, size=16), p.op("Relu", rotated)]


def linear_read_elsewhere(p: RotaryGraph) -> list[str]:
    qkv = p.linear("x", 96)
    return [p.attention(p.rotary(qkv, 4, 16), heads=2, size=16), p.op("Relu", qkv)]


def linear_with_activation(p: RotaryGraph) -> list[str]:
    return [p.attention(p.rotary(p.linear("x", 96, activation="gelu"), 4, 16), heads=2, size=16)]


def no_linear(p: RotaryGraph) -> list[str]:
    qkv = p.op("Relu", p.linear("x", 96))
    return [p.attention(p.rotary(qkv, 4, 16), heads=2, size=16)]


def k_of_no_linear(p: RotaryGraph) -> list[str]:
    q, k = p.rotary(p.linear("x", 32), 2, 16), p.rotary(p.op("Relu", p.linear("x", 32)), 2, 16)
    return [p.attention(q, k, p.linear("x", 32), heads=2, size=16)]


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (small_heads, "rotates heads of 8 columns, which are no multiple of 16"),
        (odd_heads, "rotates heads of 24 columns, which are no multiple of 16"),
        (q_alone, "reads a Q and a K of which only one is rotated"),
        (q_alone_of_three, "has other heads than those that are rotated before it"),
        (other_pairs, "reads a Q and a K whose pairs are different columns"),
        (read_elsewhere, "rotates what more than one attention reads"),
        (linear_read_elsewhere, "rotates what more than one attention reads"),
        (linear_with_activation, "makes by an activation, a gate or a residual"),
        (no_linear, "which no PadfreeLinear makes"),
        (k_of_no_linear, "which no PadfreeLinear makes"),
    ],
)
def test_what_stays(write: Any, reason: str) -> None:
    p = RotaryGraph()
    model = p.model(*write(p))
    rewritten, result = rotate(model)
    assert result.replaced == 0
    assert len(result.missed) == 1
    assert reason in result.missed[0].reason
    assert operators(rewritten) == operators(model)
    assert features(rewritten) == [0] * len(features(rewritten))
    assert_same(model, rewritten)


def test_attention_without_rotations_is_no_miss() -> None:
    p = RotaryGraph()
    model = p.model(p.attention(p.linear("x", 96), heads=2, size=16))
    assert rotate(model)[1] == PassResult("rotations", 0)
