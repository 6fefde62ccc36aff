# SPDX-License-Identifier: Apache-2.0
"""Each of onnxruntime's fused operators compared with the standard operators that it is imported as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.onnx_tools.importing.fused import IMPORTERS

from .fused_nodes import (
    BATCH,
    HEADS,
    LENGTH,
    LENGTHS,
    MASK,
    NONE,
    SIZE,
    TOLERANCE,
    WIDTH,
    X,
    assert_same,
    expand,
    numbers,
    one_node,
    run,
)

some = settings(max_examples=25)


@pytest.mark.parametrize("op", ["Gelu", "BiasGelu", "FastGelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_gelu(op: str, bias: bool) -> None:
    if (op, bias) not in (("Gelu", True), ("BiasGelu", False)):
        assert_same(op, {"x": 3 * X, **({"bias": numbers(WIDTH)} if bias else {})})


@pytest.mark.parametrize("alpha", [None, 1.0, -0.7])
def test_quick_gelu(alpha: float | None) -> None:
    assert_same("QuickGelu", {"x": 3 * X}, **({} if alpha is None else {"alpha": alpha}))


def test_bias_add() -> None:
    inputs = {"x": X, "bias": numbers(WIDTH), "skip": numbers(*X.shape, seed=1)}  # has no kernel on a CPU
    result = run(expand(one_node("BiasAdd", inputs)), inputs, [0])[0]
    assert np.allclose(result, sum(inputs.values()), atol=TOLERANCE)


@some
@given(st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, 1e-12, 1e-3]), st.sampled_from([12, 17, 18]))
def test_skip_norm(rms: bool, beta: bool, bias: bool, epsilon: float | None, opset: int) -> None:
    inputs = {"x": X, "skip": numbers(*X.shape, seed=1), "gamma": numbers(WIDTH, seed=2)}
    if not rms:
        inputs["beta"] = numbers(WIDTH, seed=3) if beta else NONE
    inputs["bias"] = numbers(WIDTH, seed=4) if bias else NONE
    op = "SkipSimplifiedLayerNormalization" if rms else "SkipLayerNormalization"
    assert_same(op, inputs, (0, 3), opset=opset, **({} if epsilon is None else {"epsilon": epsilon}))


@pytest.mark.parametrize("shape", [(LENGTH, WIDTH), (1, LENGTH, WIDTH)])
def test_residual_of_every_sequence(shape: tuple[int, ...]) -> None:
    inputs = {"x": X, "skip": numbers(*shape), "gamma": numbers(WIDTH, seed=2), "beta": numbers(WIDTH, seed=3)}
    assert_same("SkipLayerNormalization", inputs, epsilon=1e-5)


@pytest.mark.parametrize("opset", [11, 14, 16, 17])
@pytest.mark.parametrize(("op", "beta"), [("LayerNormalization", True), ("SimplifiedLayerNormalization", False)])
def test_norms_in_the_domain_of_onnx(op: str, beta: bool, opset: int) -> None:
    inputs = {"x": X, "gamma": numbers(WIDTH), **({"beta": numbers(WIDTH, seed=1)} if beta else {})}
    if (op, opset) != ("LayerNormalization", 17):
        for axis in (-1, 2):
            assert_same(op, inputs, opset=opset, domain="", axis=axis, epsilon=1e-3, stash_type=1)


@some
@given(st.booleans(), st.booleans(), st.sampled_from(["none", "one", "each"]), st.sampled_from([12, 18]))
def test_embedding(types: bool, mask: bool, positions: str, opset: int) -> None:
    ids = np.random.default_rng(0).integers(0, 9, (BATCH, LENGTH)).astype(np.int32)
    inputs = {
        "ids": ids,
        "types": ids % 2 if types else NONE,
        "words": numbers(9, WIDTH),
        "places": numbers(12, WIDTH, seed=1),
        "kinds": numbers(2, WIDTH) if types else NONE,
        "gamma": numbers(WIDTH),
        "beta": numbers(WIDTH, seed=1),
        "mask": MASK if mask else NONE,
        "positions": {"none": NONE, "one": ids[:1] + 2, "each": ids + 1}[positions],
    }
    assert_same("EmbedLayerNormalization", inputs, (0, 1, 2) if mask else (0,), opset=opset, epsilon=1e-5)


@some
@given(st.integers(2, 4), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([1.0, 0.3]))
def test_fused_matmul(rank: int, a: bool, b: bool, batch_a: bool, batch_b: bool, alpha: float) -> None:
    batch_a, batch_b = batch_a and rank > 2, batch_b and rank > 2

    def operand(rows: int, columns: int, transposed: bool, batch: bool) -> np.ndarray:
        sizes = [columns, rows] if transposed else [rows, columns]
        others = [3, 4][: rank - 2]
        return numbers(*([sizes[0], *others, sizes[1]] if batch else [*others, *sizes]), seed=rows)

    inputs = {"a": operand(6, 7, a, batch_a), "b": operand(7, 9, b, batch_b)}
    flags = {"transA": a, "transB": b, "transBatchA": batch_a, "transBatchB": batch_b}
    assert_same("FusedMatMul", inputs, alpha=alpha, **{name: int(flag) for name, flag in flags.items()})


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", {}), ("Tanh", {}), ("Sigmoid", {}), ("LeakyRelu", {"activation_alpha": 0.3}), ("Softplus", {}),
     ("Elu", {"activation_alpha": 1.0}), ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
     ("Softsign", {}), ("ThresholdedRelu", {"activation_alpha": 0.3})],
)  # fmt: skip
def test_fused_gemm(activation: str, parameters: dict[str, float]) -> None:
    inputs = {"a": numbers(7, 4), "b": numbers(7, 9), "c": numbers(9)}
    assert_same("FusedGemm", inputs, activation=activation, alpha=0.5, beta=2.0, transA=1, **parameters)


@some
@given(st.booleans(), st.booleans(), st.sampled_from(["offset", "each"]), st.booleans())
def test_rotary_embedding(heads_first: bool, interleaved: bool, positions: str, part: bool) -> None:
    x = numbers(BATCH, HEADS, LENGTH, SIZE) if heads_first else X
    half = SIZE // 4 if part else SIZE // 2
    angles = numbers(20, half)
    indices = np.asarray([3], np.int64)
    if positions == "each":
        indices = np.random.default_rng(0).integers(0, 20, (BATCH, LENGTH))
    inputs = {"x": x, "positions": indices, "cos": np.cos(angles), "sin": np.sin(angles)}
    sizes = {"num_heads": HEADS, "rotary_embedding_dim": 2 * half} if part else {}
    assert_same("RotaryEmbedding", inputs, interleaved=int(interleaved), **sizes)


MASKS = {
    "none": NONE,
    "lengths": LENGTHS,
    "keys": MASK,
    "pairs": np.broadcast_to(MASK[:, None], (BATCH, LENGTH, LENGTH)),
}
BIASES = {"none": NONE, "one": numbers(1, 1, LENGTH, LENGTH), "each": numbers(BATCH, HEADS, LENGTH, LENGTH)}
forms = given(
    st.sampled_from(sorted(MASKS)), st.sampled_from(sorted(BIASES)), st.sampled_from([None, -10000.0, -3.4e38]),
    st.sampled_from([None, 0.2]), st.booleans(), st.booleans(), st.sampled_from([12, 17]),
)  # fmt: skip


def attributes(low: float | None, scale: float | None, causal: bool) -> dict[str, Any]:
    results: dict[str, Any] = {"num_heads": HEADS, "unidirectional": int(causal)}
    results |= {} if low is None else {"mask_filter_value": low}
    return results | ({} if scale is None else {"scale": scale})


@settings(some, max_examples=40)
@forms
def test_attention(
    mask: str, bias: str, low: float | None, scale: float | None, causal: bool, own_bias: bool, opset: int
) -> None:
    inputs = {
        "x": X, "weight": numbers(WIDTH, 3 * WIDTH), "bias": numbers(3 * WIDTH) * own_bias,
        "mask": MASKS[mask], "past": NONE, "scores": BIASES[bias],
    }  # fmt: skip
    arguments = {"opset": opset, "weights": ("weight",), **attributes(low, scale, causal)}
    if own_bias:
        assert_same("Attention", inputs, **arguments)
        return
    # onnxruntime's kernel requires a bias, which its description calls optional.
    without = expand(one_node("Attention", {**inputs, "bias": NONE}, **arguments))
    wanted = run(one_node("Attention", inputs, **arguments), inputs, [0])[0]
    assert np.allclose(wanted, run(without, inputs, [0])[0], atol=TOLERANCE)


def test_attention_with_wider_values() -> None:
    inputs = {"x": X, "weight": numbers(WIDTH, 2 * WIDTH + 24), "bias": numbers(2 * WIDTH + 24), "mask": MASK}
    assert_same("Attention", inputs, num_heads=HEADS, qkv_hidden_sizes=[WIDTH, WIDTH, 24])


@settings(some, max_examples=40)
@forms
def test_multi_head_attention(
    mask: str, bias: str, low: float | None, scale: float | None, causal: bool, own_bias: bool, opset: int
) -> None:
    q, k, v = (numbers(BATCH, LENGTH, WIDTH, seed=seed) for seed in (1, 2, 3))
    inputs = {"q": q, "k": k, "v": v, "bias": numbers(3 * WIDTH) if own_bias else NONE, "mask": MASKS[mask],
              "scores": BIASES[bias]}  # fmt: skip
    weights = ("bias",) if own_bias else ()
    assert_same("MultiHeadAttention", inputs, opset=opset, weights=weights, **attributes(low, scale, causal))


@pytest.mark.parametrize("packed", ["qkv", "kv"])
def test_packed_projections(packed: str) -> None:
    """onnxruntime has no CPU kernel for them: the same is computed with separate Q, K and V."""
    q, k, v = (numbers(BATCH, LENGTH, WIDTH, seed=seed) for seed in (1, 2, 3))
    apart = {"q": q, "k": k, "v": v, "bias": numbers(3 * WIDTH), "mask": MASK}
    split = [item.reshape(BATCH, LENGTH, HEADS, 1, SIZE) for item in (q, k, v)]
    together = {"q": np.concatenate(split, 3), "k": NONE, "v": NONE}
    if packed == "kv":
        together = {"q": q, "k": np.concatenate(split[1:], 3), "v": NONE}
    together |= {"bias": apart["bias"], "mask": MASK}
    wanted = run(one_node("MultiHeadAttention", apart, num_heads=HEADS), apart, [0])[0]
    model = one_node("MultiHeadAttention", together, num_heads=HEADS, weights=("bias",))
    assert np.allclose(wanted, run(expand(model), together, [0])[0], atol=TOLERANCE)


def test_all_importers_are_tested() -> None:
    assert set(IMPORTERS) == {
        "Attention", "BiasAdd", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "FusedGemm", "FusedMatMul",
        "GatherBlockQuantized", "Gelu", "GroupQueryAttention", "LayerNormalization", "MatMulNBits",
        "MultiHeadAttention", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }  # fmt: skip
