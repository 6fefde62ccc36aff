# SPDX-License-Identifier: Apache-2.0
"""The bodies of GEMMs and of rotary embeddings in onnxruntime compared with numpy, in every variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from padfree.onnx_tools.operators import OPERATORS

from tests.support import reference as ref

from .bodies import (
    HEADS,
    SIZE,
    TOLERANCE,
    WIDTH,
    check,
    opsets,
    rng,
    run,
)


@opsets
@pytest.mark.parametrize("activation", OPERATORS["PadfreeLinear"].attribute("activation").allowed)
@pytest.mark.parametrize("flags", range(4))
def test_linear(opset: int, activation: str, flags: int) -> None:
    bias, residual = (flags >> i & 1 for i in range(2))
    r = rng()
    for tokens in (6, 0):
        tensors = {
            "x": r.standard_normal((tokens, WIDTH)).astype(np.float32),
            "weight": r.standard_normal((WIDTH, 16)).astype(np.float32),
        }
        if bias:
            tensors["bias"] = r.standard_normal(16).astype(np.float32)
        if residual:
            tensors["residual"] = r.standard_normal((tokens, 16)).astype(np.float32)
        attributes = linear_attributes(activation=activation, has_bias=bias, has_residual=residual)
        (y,) = run("PadfreeLinear", tensors, opset, **attributes)
        check(y, ref.linear(**tensors, activation=activation))


def linear_attributes(**options: Any) -> dict[str, Any]:
    flags = ("has_bias", "has_residual", "has_x_moments", "has_residual_moments", "has_moments", "gated", "rms")
    plain = {"activation": "none", "rotary_features": 0, "x_epsilon": 0.0, "residual_epsilon": 0.0}
    return {**plain, **dict.fromkeys(flags, 0), **options}


@opsets
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("flags", [1, 2, 4, 5, 6])  # of x, of the residual, of y; the first two are never combined
def test_linear_with_moments(opset: int, dtype: type, flags: int, rms: int) -> None:
    of_x, of_residual, of_y = (flags >> i & 1 for i in range(3))
    r = rng()
    for tokens in (6, 0):
        x, residual = (r.standard_normal((tokens, 128)).astype(dtype) + dtype(i) for i in (3, -2))
        weight = (r.standard_normal((128, 128)) / 8).astype(dtype)
        feeds = {"x": x, "weight": weight, "residual": residual}
        if of_x:
            feeds["x_moments"] = ref.moments(x).astype(np.float32)
        if of_residual:
            feeds["residual_moments"] = ref.moments(residual).astype(np.float32)
            feeds["residual_scale"] = r.standard_normal(128).astype(dtype)
        epsilons = {"x_epsilon": 0.5 * of_x, "residual_epsilon": 0.25 * of_residual}
        has = {"has_x_moments": of_x, "has_residual_moments": of_residual, "has_moments": of_y}
        attributes = linear_attributes(has_residual=1, rms=rms, **has, **epsilons)
        y, *moments = run("PadfreeLinear", feeds, opset, **attributes)
        expected = ref.linear(**feeds, activation="none", rms=bool(rms), **epsilons)
        # Outputs up to 30; fp16 rounds them to 11 bits.
        check(y, expected, dtype, **(TOLERANCE if dtype == np.float32 else {"rtol": 1e-3, "atol": 1e-3}))
        for actual in moments:
            check(actual, ref.moments(expected))


@opsets
@pytest.mark.parametrize("activation", OPERATORS["PadfreeLinear"].attribute("activation").allowed)
@pytest.mark.parametrize("normed", [0, 1])
def test_gated_linear(opset: int, activation: str, normed: int) -> None:
    r = rng()
    for tokens in (6, 0):
        x = r.standard_normal((tokens, 64)).astype(np.float32)
        weight, bias = (r.standard_normal(shape).astype(np.float32) / 4 for shape in ((64, 48), 48))
        feeds = {"x": x, "weight": weight, "bias": bias}
        if normed:
            feeds["x_moments"] = ref.moments(x).astype(np.float32)
        attributes = linear_attributes(activation=activation, has_bias=1, gated=1, has_x_moments=normed)
        (y,) = run("PadfreeLinear", feeds, opset, **attributes)
        assert y.shape == (tokens, 24)
        check(y, ref.linear(**feeds, activation=activation, gated=True))


@opsets
@pytest.mark.parametrize("rotated", [16, 32, 48])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_linear_rotates_pairs(opset: int, rotated: int, dtype: type) -> None:
    r = rng()
    for tokens in (6, 0):
        feeds = {
            "x": r.standard_normal((tokens, 24)).astype(dtype),
            "weight": (r.standard_normal((24, 48)) / 4).astype(dtype),
            "bias": r.standard_normal(48).astype(dtype),
            "positions": r.integers(0, 8192, tokens).astype(np.int32),
            "frequencies": frequencies(rotated // 2),
        }
        attributes = linear_attributes(has_bias=1, rotary_features=rotated)
        (y,) = run("PadfreeLinear", feeds, opset, **attributes)
        expected = ref.linear(**feeds, activation="none")
        check(y, expected, dtype, **(TOLERANCE if dtype == np.float32 else {"rtol": 1e-3, "atol": 1e-3}))


@opsets
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("heads", "size"), [(1, 128), (3, 128), (1, 256), (2, 256)])
def test_linear_with_norms_of_heads(opset: int, dtype: type, heads: int, size: int) -> None:
    r, features = rng(), size * heads
    for tokens in (6, 0):
        feeds = {
            "x": r.standard_normal((tokens, 64)).astype(dtype),
            "weight": (r.standard_normal((64, features + 64)) / 8).astype(dtype),
            "positions": r.integers(0, 8192, tokens).astype(np.int32),
            "frequencies": frequencies(features // 2),
            "head_scale": r.standard_normal(features).astype(dtype),
        }
        attributes = linear_attributes(rotary_features=features, residual_epsilon=0.5, norms_heads=1)
        attributes |= {"wide_heads": 1} if size == 256 else {}
        (y,) = run("PadfreeLinear", feeds, opset, **attributes)
        expected = ref.linear(**feeds, activation="none", residual_epsilon=0.5, head_size=size)
        check(y, expected, dtype, **(TOLERANCE if dtype == np.float32 else {"rtol": 1e-3, "atol": 2e-3}))


def frequencies(pairs: int) -> np.ndarray:
    """The frequencies for theta 10000, with the last pair not rotated."""
    values = (10000.0 ** -(np.arange(pairs) / pairs)).astype(np.float32)
    values[-1] = 0
    return values


@opsets
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rotary(opset: int, pairing: str, heads: int, dtype: type) -> None:
    r = rng()
    for tokens in (6, 0):
        x = r.standard_normal((tokens, WIDTH)).astype(dtype)
        positions = r.integers(0, 8192, tokens).astype(np.int32)
        feeds = {"x": x, "positions": positions, "frequencies": frequencies(SIZE // 2)[None]}
        options = {"head_size": SIZE, "num_heads": heads, "pairing": pairing}
        (y,) = run("PadfreeRotary", feeds, opset, **options)
        check(
            y,
            ref.rotary(**feeds, **options),
            dtype,
            **(TOLERANCE if dtype == np.float32 else {"rtol": 1e-3, "atol": 1e-3}),
        )
        np.testing.assert_array_equal(y[:, heads * SIZE :], x[:, heads * SIZE :])


@opsets
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("heads", [(HEADS, HEADS), (2 * HEADS, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_qk_norm_rotary(opset: int, pairing: str, heads: tuple[int, int], dtype: type) -> None:
    """V is not read."""
    r, count = rng(), sum(heads)
    for tokens in (6, 0):
        qkv = r.standard_normal((tokens, (count + heads[1]) * SIZE)).astype(dtype)
        qkv[:, count * SIZE :] = np.nan
        feeds = {
            "qkv": qkv,
            "q_gamma": r.standard_normal(SIZE).astype(dtype),
            "k_gamma": r.standard_normal(SIZE).astype(dtype),
            "positions": r.integers(0, 8192, tokens).astype(np.int32),
            "frequencies": frequencies(SIZE // 2)[None],
        }
        options = {"num_heads": heads[0], "num_kv_heads": heads[1], "head_size": SIZE, "pairing": pairing}
        (qk,) = run("PadfreeQkNormRotary", feeds, opset, epsilon=1e-6, **options)
        assert qk.shape == (tokens, count * SIZE)
        tolerance = TOLERANCE if dtype == np.float32 else {"rtol": 1e-3, "atol": 2e-3}
        check(qk, ref.qk_norm_rotary(**feeds, epsilon=1e-6, **options), dtype, **tolerance)


@opsets
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("has_moments", [0, 1])
def test_post_norm(opset: int, dtype: type, has_moments: int) -> None:
    r = rng()
    for tokens in (6, 0):
        x, residual = (r.standard_normal((tokens, 128)).astype(dtype) + dtype(i) for i in (3, -2))
        feeds = {"x": x, "residual": residual, "gamma": r.standard_normal(128).astype(dtype)}
        y, *moments = run("PadfreePostNorm", feeds, opset, epsilon=0.5, has_moments=has_moments)
        expected = ref.post_norm(**feeds, epsilon=0.5)
        tolerance = TOLERANCE if dtype == np.float32 else {"rtol": 1e-3, "atol": 2e-3}
        check(y, expected, dtype, **tolerance)
        assert len(moments) == has_moments
        for actual in moments:
            check(actual, ref.moments(expected), rtol=1e-4, atol=1e-4)


@opsets
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("has_moments", [0, 1])
def test_token_rows(opset: int, dtype: type, has_moments: int) -> None:
    """Ids may name no row."""
    table = rng().standard_normal((7, 128)).astype(dtype)
    for ids in ([3, -1, 6, 7, 0, 3], []):
        feeds = {"ids": np.array(ids, np.int32), "table": table}
        y, *moments = run("PadfreeTokenRows", feeds, opset, scale=1.5, has_moments=has_moments)
        expected = ref.token_rows(**feeds, scale=1.5)
        check(y, expected, dtype, **(TOLERANCE if dtype == np.float32 else {"rtol": 1e-3, "atol": 0}))
        assert len(moments) == has_moments
        for actual in moments:
            check(actual, ref.moments(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("filler", [0, 2])
def test_token_rows_make_the_schedule(filler: int) -> None:
    lengths, tokens = np.array([3, 0, 4], np.int32), 7 + filler
    table, ids = np.ones((2, 64), np.float32), np.zeros(tokens, np.int32)
    flags = {"has_moments": 0, "schedules": 1, "has_positions": 1}
    results = run("PadfreeTokenRows", {"ids": ids, "table": table, "seq_lens": lengths}, 17, scale=2.0, **flags)
    schedule = {"has_extent": 0, "has_positions": 1, "has_tasks": 0, "num_heads": 1}
    expected = run("PadfreeSchedule", {"seq_lens": lengths, "tokens": ids}, 17, **schedule)
    for actual, wanted in zip(results, (2 * np.ones((tokens, 64), np.float32), *expected), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_a_norm_between_two_gemms_is_what_the_moments_make_it() -> None:
    """LN(x) W + b, and x + LN(r), computed only from x and r."""
    r = rng()
    x = r.standard_normal((5, 64)).astype(np.float32) * 3 + 7
    gamma, beta, weight = (r.standard_normal(shape).astype(np.float32) for shape in ((64,), (64,), (64, 64)))
    scaled, moments = gamma[:, None] * weight, ref.moments(x).astype(np.float32)
    scaled -= scaled.mean(0)
    normed = ref.normalise(ref.f64(x), gamma, beta, 1e-5)
    feeds = {"x": x, "weight": scaled, "bias": beta @ weight, "x_moments": moments}
    (y,) = run("PadfreeLinear", feeds, 17, **linear_attributes(has_bias=1, has_x_moments=1, x_epsilon=1e-5))
    # The mean is 2.3 standard deviations.
    check(y, normed @ ref.f64(weight), rtol=1e-4, atol=1e-4)
    feeds = {"x": x, "weight": weight, "bias": beta, "residual": x, "residual_moments": moments}
    flags = {"has_bias": 1, "has_residual": 1, "has_residual_moments": 1, "residual_epsilon": 1e-5}
    (y,) = run("PadfreeLinear", {**feeds, "residual_scale": gamma}, 17, **linear_attributes(**flags))
    check(y, ref.f64(x) @ ref.f64(weight) + normed, rtol=1e-4, atol=1e-4)
