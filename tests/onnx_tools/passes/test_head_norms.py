# SPDX-License-Identifier: Apache-2.0
"""Norms of heads in the GEMM that makes Q, K and V: attention stays the same; what is not folded, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from padfree.onnx_tools.operators import node_attributes
from padfree.onnx_tools.passes import PassResult
from padfree.onnx_tools.passes.linear.head_norms import head_norms
from padfree.onnx_tools.passes.norms.norm_folding import norm_folding

from .packed_graphs import operators, run_passes
from .test_rotations import RotaryGraph, assert_same

SIZE = 128


class HeadGraph(RotaryGraph):
    """A graph with norms of heads, too."""

    def qk_norms(self, qkv: str, heads: int, kv_heads: int, *, size: int = SIZE, pairing: str = "half") -> str:
        frequencies = self.initializer(100.0 ** -np.linspace(0, 1, size // 2)[np.newaxis], "float32")
        gammas = [self.constant(size, center=1.0) for _ in range(2)]
        return self.padfree(
            "PadfreeQkNormRotary", "qk", [qkv, *gammas, "positions", frequencies], epsilon=0.1, num_heads=heads,
            num_kv_heads=kv_heads, head_size=size, pairing=pairing,
        )  # fmt: skip

    def normed_attention(self, x: str, heads: int, kv_heads: int, *, size: int = SIZE, **options: Any) -> str:
        qkv = self.linear(x, (heads + 2 * kv_heads) * size, **options)
        qk = self.qk_norms(qkv, heads, kv_heads, size=size)
        return self.attention(qk, qkv, heads=heads, kv_heads=kv_heads, size=size, layout="2HD")


def fold(model: ModelProto, precision: str = "fp32", *, norms: bool = False) -> tuple[ModelProto, PassResult]:
    rewritten, results = run_passes(model, precision, head_norms, *([norm_folding] if norms else []))
    assert all(result.replaced for result in results[1:])
    return rewritten, results[0]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 1), (1, 1)])
@pytest.mark.parametrize("bias", ["random", ""])
@pytest.mark.parametrize("size", [128, 256])
def test_the_gemm_norms_and_rotates(
    heads: int, kv_heads: int, pairing: str, precision: str, bias: str, size: int
) -> None:
    p = HeadGraph(precision)
    qkv = p.linear("x", (heads + 2 * kv_heads) * size, bias=bias)
    qk = p.qk_norms(qkv, heads, kv_heads, size=size, pairing=pairing)
    model = p.model(p.attention(qk, qkv, heads=heads, kv_heads=kv_heads, size=size, layout="2HD"))
    rewritten, result = fold(model, precision)
    assert (result, operators(rewritten)) == (PassResult("head norms", 1), ["Linear", "Attention"])
    gemm, attention = map(node_attributes, rewritten.graph.node)
    assert (gemm["norms_heads"], gemm["rotary_features"]) == (1, (heads + kv_heads) * size)
    written = [attribute.name for attribute in rewritten.graph.node[0].attribute]
    assert ("wide_heads" in written, gemm["wide_heads"]) == (size == 256, size == 256)  # earlier files have none
    assert attention["qkv_layout"] == "3HD"
    assert rewritten.graph.node[0].output[0] == "linear0_pairs"  # it is not a renamed tensor of the model
    assert_same(model, rewritten, precision)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_norm_ahead_goes_into_the_gemm(precision: str) -> None:
    p = HeadGraph(precision)
    model = p.model(p.normed_attention(p.norm(p.linear("x"), beta=False, rms=1), 2, 1))
    rewritten, result = fold(model, precision, norms=True)
    assert (result.replaced, operators(rewritten)) == (1, ["Linear", "Linear", "Attention"])
    assert node_attributes(rewritten.graph.node[1])["has_x_moments"]
    assert_same(model, rewritten, precision)


def other_heads(p: HeadGraph) -> list[str]:
    return [p.normed_attention("x", 2, 1, size=64)]


def no_gemm(p: HeadGraph) -> list[str]:
    qkv = p.op("Relu", p.linear("x", 4 * SIZE))
    return [p.attention(p.qk_norms(qkv, 2, 1), qkv, heads=2, kv_heads=1, size=SIZE, layout="2HD")]


def activation_behind(p: HeadGraph) -> list[str]:
    return [p.normed_attention("x", 2, 1, activation="silu")]


def another_reader(p: HeadGraph) -> list[str]:
    qkv = p.linear("x", 4 * SIZE)
    attention = p.attention(p.qk_norms(qkv, 2, 1), qkv, heads=2, kv_heads=1, size=SIZE, layout="2HD")
    return [attention, p.op("Relu", qkv)]


def an_output(p: HeadGraph) -> list[str]:
    qkv = p.linear("x", 4 * SIZE)
    return [p.attention(p.qk_norms(qkv, 2, 1), qkv, heads=2, kv_heads=1, size=SIZE, layout="2HD"), qkv]


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (other_heads, "heads of 64 columns; GEMMs norm those of 128 or 256"),
        (no_gemm, "which no PadfreeLinear makes"),
        (activation_behind, "makes by an activation, a gate or a residual"),
        (another_reader, "other readers would see permuted columns"),
        (an_output, "other readers would see permuted columns"),
    ],
)
def test_others_stay(network: Any, reason: str) -> None:
    p = HeadGraph()
    model = p.model(*network(p))
    rewritten, result = fold(model)
    assert [reason in miss.reason for miss in result.missed] == [True]
    assert operators(rewritten) == operators(model)
