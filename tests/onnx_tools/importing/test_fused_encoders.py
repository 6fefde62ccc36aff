# SPDX-License-Identifier: Apache-2.0
"""Whole layers of fused operators that no exporter of the fixtures writes: they are packed like any others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from padfree.onnx_tools import rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HEADS, HIDDEN, POSITIONS, TOKENS, EncoderBuilder, with_output


class FusedBuilder(EncoderBuilder):
    """Layers of operators from onnxruntime's domain."""

    def fuse(self, op: str, *inputs: str, **attributes: object) -> str:
        return self.op(op, *inputs, domain="com.microsoft", **attributes)

    def rotary(self, x: str, interleaved: int) -> str:
        angles = np.outer(np.arange(POSITIONS), 10.0 ** -np.arange(HIDDEN // HEADS // 2))
        tables = self.constant(np.cos(angles)), self.constant(np.sin(angles))
        return self.fuse("RotaryEmbedding", x, self.constant([0], np.int64), *tables, interleaved=interleaved)

    def attention(self, x: str, mask: str | None, *, scale: float = 0.35, interleaved: int | None = None) -> str:
        q, k, v = (self.linear(x, HIDDEN, HIDDEN) for _ in range(3))
        if interleaved is not None:
            q, k = self.rotary(q, interleaved), self.rotary(k, interleaved)
        bias = self.weight(3 * HIDDEN)
        context = self.fuse("MultiHeadAttention", q, k, v, bias, mask or "", num_heads=HEADS, scale=scale)
        return self.op("MatMul", context, self.weight(HIDDEN, HIDDEN))

    def layer(self, x: str, mask: str | None, *, rms: bool = False, interleaved: int | None = None) -> str:
        attended = self.attention(x, mask, interleaved=interleaved)
        norm = "SkipSimplifiedLayerNormalization" if rms else "SkipLayerNormalization"
        beta = [] if rms else [self.weight(HIDDEN)]
        x = self.fuse(norm, attended, x, self.weight(HIDDEN, center=1.0), *beta, self.weight(HIDDEN), epsilon=1e-5)
        inner = self.fuse("QuickGelu", self.op("MatMul", x, self.weight(HIDDEN, HIDDEN)), alpha=1.0)
        gated = self.fuse("FusedMatMul", inner, self.weight(HIDDEN, HIDDEN), transB=1, alpha=0.5)
        return self.fuse("SkipLayerNormalization", gated, x, self.weight(HIDDEN, center=1.0), epsilon=1e-5)

    def raw_mask(self) -> str:
        return self.op("Cast", "attention_mask", to=6)


LAYERS: dict[str, Callable[[FusedBuilder, str, str], str]] = {
    "plain": FusedBuilder.layer,
    "rms": partial(FusedBuilder.layer, rms=True),
    "rotary": partial(FusedBuilder.layer, interleaved=0),
    "interleaved rotary": partial(FusedBuilder.layer, interleaved=1),
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", LAYERS)
def test_packed_as_a_whole(name: str, interface: str) -> None:
    builder = FusedBuilder()
    hidden = LAYERS[name](builder, builder.embedding(), builder.raw_mask())
    model = with_output(hidden, builder, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 1
    assert result.report.plugins["PadfreeLayerNorm"] == 2
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_causal_attention(interface: str) -> None:
    builder = FusedBuilder()
    x = builder.embedding()
    context = builder.fuse("MultiHeadAttention", x, x, x, "", builder.raw_mask(), num_heads=HEADS, unidirectional=1)
    hidden = builder.layer(builder.op("Add", context, x), builder.raw_mask())
    model = with_output(hidden, builder, TOKENS)
    result = rewrite(model, interface=interface)
    assert result.report.plugins["PadfreeAttention"] == 2
    assert_agree(model, result)
