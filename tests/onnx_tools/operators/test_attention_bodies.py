# SPDX-License-Identifier: Apache-2.0
"""PadfreeAttention's body in onnxruntime compared with numpy, in every variant."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.support import reference as ref
from tests.support.samples import PLAIN_ATTENTION, PLAIN_NORM

from .bodies import (
    HEADS,
    OPSETS,
    SIZE,
    TOLERANCE,
    WIDTH,
    batches,
    check,
    cu_of,
    opsets,
    poison,
    rng,
    run,
    with_batches,
)


def attention_attributes(**options: Any) -> dict[str, Any]:
    return {**PLAIN_ATTENTION, "num_heads": HEADS, "num_kv_heads": HEADS, "head_size": SIZE, **options}


@batches
@pytest.mark.parametrize("qkv_layout", ["3HD", "H3D", "separate", "2HD"])
@pytest.mark.parametrize("bias", [0, 1])
def test_attention(batch: str, qkv_layout: str, bias: int) -> None:
    for opset in OPSETS if batch == "filler and empty" else (17,):
        cu, tokens = cu_of(batch)
        r = rng()
        scale = 0.9  # scores with standard deviation 0.9 * sqrt(8): the softmax is far from flat
        qkv = poison(r.standard_normal((tokens, 3 * WIDTH)).astype(np.float32), cu)
        qkv_bias = r.standard_normal(3 * WIDTH).astype(np.float32)
        parts = "H3D" if qkv_layout == "H3D" else "3HD"
        q, k, v = ref.split_qkv(qkv, HEADS, SIZE, parts)
        feeds = {"q": q, "k": k, "v": v} if qkv_layout == "separate" else {"qkv": qkv}
        if qkv_layout == "2HD":
            feeds = {
                "qk": qkv[:, : 2 * WIDTH],
                "qkv": np.concatenate([np.full_like(qkv[:, : 2 * WIDTH], np.nan), v], 1),
            }
        feeds["cu_seqlens"] = cu
        has_tasks = int(qkv_layout == "H3D")
        if has_tasks:
            feeds["tasks"] = np.zeros((1, 4), np.int32)
        if bias:
            feeds["qkv_bias"] = qkv_bias
            q, k, v = ref.split_qkv(qkv + qkv_bias, HEADS, SIZE, parts)
        (y,) = run(
            "PadfreeAttention",
            feeds,
            opset,
            **attention_attributes(scale=scale, qkv_layout=qkv_layout, has_qkv_bias=bias, has_tasks=has_tasks),
        )
        check(y, ref.attention(q, k, v, cu, num_heads=HEADS, head_size=SIZE, scale=scale))


WINDOWS = ((-1, -1), (-1, 0), (0, 0), (2, 1), (3, -1), (100, 100))


@pytest.mark.parametrize(
    ("window", "kind", "ratio", "batch"), with_batches(WINDOWS, ("none", "slope", "distance"), (1, 2, 6))
)
def test_attention_with_positions(window: tuple[int, int], kind: str, ratio: int, batch: str) -> None:
    heads = 6
    for opset, qkv_layout in itertools.product(OPSETS if batch == "filler and empty" else (17,), ("3HD", "separate")):
        cu, tokens = cu_of(batch)
        r = rng()
        widths = [heads * SIZE, heads // ratio * SIZE, heads // ratio * SIZE]
        q, k, v = (poison(r.standard_normal((tokens, width)).astype(np.float32), cu) for width in widths)
        bias = r.standard_normal(sum(widths)).astype(np.float32)
        feeds = {"q": q, "k": k, "v": v} if qkv_layout == "separate" else {"qkv": np.concatenate([q, k, v], 1)}
        feeds |= {"cu_seqlens": cu, "qkv_bias": bias}
        # At 3 of the 2 * 2 + 1 distances the bias is large enough to decide alone.
        inputs = {"slope": {"slopes": 2.0 ** -np.arange(heads, dtype=np.float32)}, "none": {}}.get(kind)
        if inputs is None:
            inputs = {"distance_bias": (r.standard_normal((heads, 5)) * [1, 30, 1, 30, 30]).astype(np.float32)}
        sides = {"window_left": window[0], "window_right": window[1]}
        attributes = attention_attributes(
            scale=0.9, qkv_layout=qkv_layout, has_qkv_bias=1, num_heads=heads, num_kv_heads=heads // ratio, bias=kind,
            bias_range=2, **sides,
        )  # fmt: skip
        (y,) = run("PadfreeAttention", {**feeds, **inputs}, opset, **attributes)
        parts = np.split(bias, np.cumsum(widths)[:2])
        biased = [operand + part for operand, part in zip((q, k, v), parts, strict=True)]
        expected = ref.attention(*biased, cu, num_heads=heads, head_size=SIZE, scale=0.9, window=window, **inputs)
        check(y, expected)


TABLES = (("k_position", "q_position"), ("k_position",), ("q_position",))


@pytest.mark.parametrize(("reach", "tables", "batch"), with_batches((0, 1, 2, 40), TABLES))
def test_disentangled_attention(reach: int, tables: tuple[str, ...], batch: str) -> None:
    for opset, qkv_layout in itertools.product(OPSETS if batch == "filler and empty" else (17,), ("H3D", "separate")):
        cu, tokens = cu_of(batch)
        r = rng()
        qkv = poison(r.standard_normal((tokens, 3 * WIDTH)).astype(np.float32), cu)
        bias = r.standard_normal(3 * WIDTH).astype(np.float32)
        parts = "3HD" if qkv_layout == "separate" else qkv_layout
        q, k, v = ref.split_qkv(qkv, HEADS, SIZE, parts)
        feeds = {"q": q, "k": k, "v": v} if qkv_layout == "separate" else {"qkv": qkv}
        feeds |= {"cu_seqlens": cu, "qkv_bias": bias}
        inputs = {name: r.standard_normal((2 * reach + 1, WIDTH)).astype(np.float32) for name in tables}
        attributes = attention_attributes(
            scale=0.9, qkv_layout=qkv_layout, has_qkv_bias=1, bias="disentangled", bias_range=reach,
            **{f"has_{name}": 1 for name in tables},
        )  # fmt: skip
        (y,) = run("PadfreeAttention", {**feeds, **inputs}, opset, **attributes)
        q, k, v = ref.split_qkv(qkv + bias, HEADS, SIZE, parts)
        check(y, ref.attention(q, k, v, cu, num_heads=HEADS, head_size=SIZE, scale=0.9, **inputs))


def test_attention_makes_nothing_of_tokens_by_tokens() -> None:
    """20,000 sequences of one token: T x T floats would be 1.6 GB per head, the body's largest value is [T,3*H*D]."""
    tokens = 20_000
    qkv = rng().standard_normal((tokens, 3 * WIDTH)).astype(np.float32)
    attributes = attention_attributes(scale=1.0)
    cu = np.arange(tokens + 1, dtype=np.int32)
    (y,) = run("PadfreeAttention", {"qkv": qkv, "cu_seqlens": cu}, 17, **attributes)
    np.testing.assert_allclose(y, qkv[:, 2 * WIDTH :], **TOLERANCE)


@opsets
def test_half_precision_bodies_compute_in_float32(opset: int) -> None:
    """fp16 in and out; only the output's rounding (2^-11 of values up to 8) may show."""
    cu, tokens = cu_of("filler and empty")
    qkv = poison((rng().standard_normal((tokens, 3 * WIDTH)) * 2).astype(np.float16), cu)
    attributes = attention_attributes(scale=1.0)
    (y,) = run("PadfreeAttention", {"qkv": qkv, "cu_seqlens": cu}, opset, **attributes)
    q, k, v = ref.split_qkv(qkv, HEADS, SIZE, "3HD")
    expected = ref.attention(q, k, v, cu, num_heads=HEADS, head_size=SIZE, scale=1.0)
    check(y, expected, np.float16, rtol=1e-3, atol=1e-3)
    x = np.full((1, 4096), 200, np.float16)  # the sum of squares is far above 65504
    x[0, ::2] = -200
    gamma = np.ones(4096, np.float16)
    (y,) = run("PadfreeLayerNorm", {"x": x, "gamma": gamma}, opset, **{**PLAIN_NORM, "epsilon": 1e-12})
    check(y, ref.layer_norm(x, gamma, epsilon=1e-12)[0], np.float16, rtol=1e-3, atol=1e-3)
    (y,) = run("PadfreePack", {"x": x[None], "token_index": np.array([0, -1], np.int32)}, opset)
    check(y, np.concatenate([x, x * 0]), np.float16)
