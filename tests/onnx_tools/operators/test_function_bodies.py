# SPDX-License-Identifier: Apache-2.0
"""Function bodies in onnxruntime against numpy, for every operator, variant, opset and awkward batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from padfree.onnx_tools import RewriteError, without_functions
from padfree.onnx_tools.operators import DOMAIN, OPERATORS, functions_for, make_node, with_functions

from tests.support import reference as ref
from tests.support.samples import PLAIN_ATTENTION

OPSETS = (14, 17, 20, 23)
HEADS, SIZE = 3, 8
WIDTH = HEADS * SIZE
EPSILON = 1e-6
# float32 against float64: sums of up to 30 products of order 1 and their norms.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}

# (lengths, filler tokens)
BATCHES: dict[str, tuple[list[int], int]] = {
    "ragged": ([5, 1, 9, 3], 0),
    "filler and empty": ([0, 4, 0, 0, 7, 1, 0], 5),
    "one token": ([1], 0),
    "all empty, filler": ([0, 0, 0], 4),
    "all empty, no token": ([0, 0], 0),
    "no sequence": ([], 0),
    "no sequence, filler": ([], 3),
    "long among short": ([1, 1, 30, 1], 2),
}
batches = pytest.mark.parametrize("batch", list(BATCHES))
opsets = pytest.mark.parametrize("opset", OPSETS)
_ELEMENT = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32}


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def cu_of(batch: str) -> tuple[np.ndarray, int]:
    lens, filler = BATCHES[batch]
    return np.concatenate([[0], np.cumsum(lens)]).astype(np.int32), int(sum(lens)) + filler


def poison(x: np.ndarray, cu: np.ndarray) -> np.ndarray:
    """NaN in every filler row: none of it may be seen in a result."""
    x[cu[-1] :] = np.nan
    return x


def model_of(node: onnx.NodeProto, feeds: dict[str, np.ndarray], opset: int) -> onnx.ModelProto:
    def info(name: str, dtype: str, rank: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, _ELEMENT[dtype], [f"{name}_{i}" for i in range(rank)])

    inputs = [info(name, str(value.dtype), value.ndim) for name, value in feeds.items()]
    spec = OPERATORS[node.op_type]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    act = next((str(v.dtype) for v in feeds.values() if v.dtype in (np.float32, np.float16)), "int32")
    data = str(next(iter(feeds.values())).dtype)
    outputs = []
    for name, tensor in zip(node.output, spec.outputs_for(attributes), strict=True):
        dtype = {"act": act, "int32": "int32", "float32": "float32", "act or int32": data}[tensor.type]
        outputs.append(helper.make_tensor_value_info(name, _ELEMENT[dtype], None))
    graph = helper.make_graph([node], "g", inputs, outputs)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    precision = "fp16" if act == "float16" else "fp32"
    return with_functions(helper.make_model(graph, opset_imports=imports, ir_version=8), precision)


def run(op: str, feeds: dict[str, np.ndarray], opset: int, **attributes: Any) -> list[np.ndarray]:
    spec = OPERATORS[op]
    names = [f"out_{tensor.name}" for tensor in spec.outputs_for(attributes)]
    expected = [tensor.name for tensor in spec.inputs_for(attributes)]
    assert sorted(expected) == sorted(feeds), "the test feeds what the description asks for"
    node = make_node(op, expected, names, name="node", **attributes)
    model = model_of(node, {name: feeds[name] for name in expected}, opset)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def check(actual: np.ndarray, expected: np.ndarray, dtype: type = np.float32, **tolerance: float) -> None:
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, **(tolerance or TOLERANCE))


@opsets
@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (2, 0), (0, 4)])
def test_index(opset: int, shape: tuple[int, int]) -> None:
    mask = rng().integers(-1, 2, shape).astype(np.int32)
    if shape[0] > 1:
        mask[1] = 0
    for actual, expected in zip(run("PadfreeIndex", {"mask": mask}, opset), ref.index(mask), strict=True):
        assert actual.dtype == np.int32
        np.testing.assert_array_equal(actual, expected)


@opsets
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("rest", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize(("size", "indices"), [((3, 4), [0, 5, -1, 11, 12, 5, -7]), ((3, 4), []), ((3, 0), [0, -1])])
def test_pack(opset: int, dtype: type, rest: tuple[int, ...], size: tuple[int, int], indices: Sequence[int]) -> None:
    x = (rng().standard_normal((*size, *rest)) * 100).astype(dtype)
    token_index = np.array(indices, np.int32)
    (packed,) = run("PadfreePack", {"x": x, "token_index": token_index}, opset)
    expected = ref.pack(x, token_index)
    assert packed.dtype == dtype
    assert packed.shape == expected.shape
    np.testing.assert_array_equal(packed, expected)


@opsets
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("rest", [(), (5,), (2, 3)])
@pytest.mark.parametrize(
    ("size", "indices"),
    [((3, 4), [1, 5, -1, 11, 12, -7]), ((3, 4), []), ((3, 0), [0, -1]), ((0, 4), [0, -1]), ((0, 4), [])],
)
def test_unpack(opset: int, dtype: type, rest: tuple[int, ...], size: tuple[int, int], indices: Sequence[int]) -> None:
    packed = (rng().standard_normal((len(indices), *rest)) * 100).astype(dtype)
    feeds = {
        "packed": packed,
        "token_index": np.array(indices, np.int32),
        "seq_lens": np.zeros(size[0], np.int32),
        "extent": np.zeros((2, size[1]), np.int32),
    }
    (x,) = run("PadfreeUnpack", feeds, opset)
    expected = ref.unpack(packed, feeds["token_index"], feeds["seq_lens"], feeds["extent"])
    assert x.dtype == dtype
    assert x.shape == expected.shape
    np.testing.assert_array_equal(x, expected)


@opsets
@pytest.mark.parametrize("extent", [None, 0, 3, 9, 12])
@pytest.mark.parametrize(
    ("lens", "tokens"),
    [
        ([5, 1, 9, 3], 18),
        ([0, 5, -4, 0, 9], 20),
        ([5, 9, 9], 12),  # more than there are tokens
        ([2**31 - 1, 2**31 - 1, -(2**31)], 6),
        ([], 3),
        ([0, 0], 0),
        ([], 0),
    ],
)
def test_schedule(opset: int, extent: int | None, lens: list[int], tokens: int) -> None:
    feeds = {"seq_lens": np.array(lens, np.int32), "tokens": np.zeros(tokens, np.int32)}
    if extent is not None:
        feeds["extent"] = np.zeros(extent, np.int32)
    expected = [item for item in ref.schedule(feeds["seq_lens"], tokens, extent) if item is not None]
    for more in (0, 1):
        attributes = {"has_extent": int(extent is not None), "has_positions": more, "has_tasks": more, "num_heads": 12}
        outputs = run("PadfreeSchedule", feeds, opset, **attributes)
        lists = [ref.positions(expected[0], tokens), np.zeros((1, 4), np.int32)] if more else []
        for actual, wanted in zip(outputs, [*expected, *lists], strict=True):
            assert actual.dtype == np.int32
            np.testing.assert_array_equal(actual, wanted)


@batches
@pytest.mark.parametrize("types", [0, 1])
@pytest.mark.parametrize("positions", ["none", "counted", "given"])
@pytest.mark.parametrize("beta", [0, 1])
def test_embedding(batch: str, types: int, positions: str, beta: int) -> None:
    for opset in OPSETS if batch == "filler and empty" else (17,):
        cu, tokens = cu_of(batch)
        r = rng()
        offset = 2 if positions == "counted" else 0
        tensors = {
            "ids": r.integers(-2, 13, tokens).astype(np.int32),  # some below 0, some from V on
            "cu_seqlens": cu,
            "word_table": r.standard_normal((11, WIDTH)).astype(np.float32),
            "gamma": r.standard_normal(WIDTH).astype(np.float32),
        }
        if types:
            tensors["token_types"] = r.integers(0, 4, tokens).astype(np.int32)
            tensors["type_table"] = r.standard_normal((3, WIDTH)).astype(np.float32)
        if positions != "none":
            tensors["position_table"] = r.standard_normal((20, WIDTH)).astype(np.float32)
        if positions == "given":
            tensors["positions"] = r.integers(-1, 22, tokens).astype(np.int32)
        if beta:
            tensors["beta"] = r.standard_normal(WIDTH).astype(np.float32)
        (y,) = run(
            "PadfreeEmbedding",
            tensors,
            opset,
            epsilon=EPSILON,
            position_offset=offset,
            has_token_types=types,
            has_positions=int(positions == "given"),
            has_position_table=int(positions != "none"),
            has_beta=beta,
        )
        check(y, ref.embedding(**tensors, epsilon=EPSILON, position_offset=offset))


def attention_attributes(**given: Any) -> dict[str, Any]:
    return {**PLAIN_ATTENTION, "num_heads": HEADS, "num_kv_heads": HEADS, "head_size": SIZE, **given}


@batches
@pytest.mark.parametrize("qkv_layout", ["3HD", "H3D", "separate"])
@pytest.mark.parametrize("bias", [0, 1])
def test_attention(batch: str, qkv_layout: str, bias: int) -> None:
    for opset in OPSETS if batch == "filler and empty" else (17,):
        cu, tokens = cu_of(batch)
        r = rng()
        scale = 0.9  # scores of standard deviation 0.9 * sqrt(8): the softmax is far from flat
        qkv = poison(r.standard_normal((tokens, 3 * WIDTH)).astype(np.float32), cu)
        qkv_bias = r.standard_normal(3 * WIDTH).astype(np.float32)
        parts = "3HD" if qkv_layout == "separate" else qkv_layout
        q, k, v = ref.split_qkv(qkv, HEADS, SIZE, parts)
        feeds = {"q": q, "k": k, "v": v} if qkv_layout == "separate" else {"qkv": qkv}
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


@batches
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (0, 0), (2, 1), (3, -1), (100, 100)])
@pytest.mark.parametrize("kind", ["none", "slope", "distance"])
@pytest.mark.parametrize("ratio", [1, 2, 6])
def test_attention_with_positions(batch: str, window: tuple[int, int], kind: str, ratio: int) -> None:
    heads = 6
    for opset, qkv_layout in itertools.product(OPSETS if batch == "filler and empty" else (17,), ("3HD", "separate")):
        cu, tokens = cu_of(batch)
        r = rng()
        widths = [heads * SIZE, heads // ratio * SIZE, heads // ratio * SIZE]
        q, k, v = (poison(r.standard_normal((tokens, width)).astype(np.float32), cu) for width in widths)
        bias = r.standard_normal(sum(widths)).astype(np.float32)
        feeds = {"q": q, "k": k, "v": v} if qkv_layout == "separate" else {"qkv": np.concatenate([q, k, v], 1)}
        feeds |= {"cu_seqlens": cu, "qkv_bias": bias}
        # At 3 of 2 * 2 + 1 distances the bias decides alone.
        given = {"slope": {"slopes": 2.0 ** -np.arange(heads, dtype=np.float32)}, "none": {}}.get(kind)
        if given is None:
            given = {"distance_bias": (r.standard_normal((heads, 5)) * [1, 30, 1, 30, 30]).astype(np.float32)}
        sides = {"window_left": window[0], "window_right": window[1]}
        attributes = attention_attributes(
            scale=0.9, qkv_layout=qkv_layout, has_qkv_bias=1, num_heads=heads, num_kv_heads=heads // ratio, bias=kind,
            bias_range=2, **sides,
        )  # fmt: skip
        (y,) = run("PadfreeAttention", {**feeds, **given}, opset, **attributes)
        parts = np.split(bias, np.cumsum(widths)[:2])
        biased = [operand + part for operand, part in zip((q, k, v), parts, strict=True)]
        expected = ref.attention(*biased, cu, num_heads=heads, head_size=SIZE, scale=0.9, window=window, **given)
        check(y, expected)


@batches
@pytest.mark.parametrize("reach", [0, 1, 2, 40])
@pytest.mark.parametrize("tables", [("k_position", "q_position"), ("k_position",), ("q_position",)])
def test_disentangled_attention(batch: str, reach: int, tables: tuple[str, ...]) -> None:
    for opset, qkv_layout in itertools.product(OPSETS if batch == "filler and empty" else (17,), ("H3D", "separate")):
        cu, tokens = cu_of(batch)
        r = rng()
        qkv = poison(r.standard_normal((tokens, 3 * WIDTH)).astype(np.float32), cu)
        bias = r.standard_normal(3 * WIDTH).astype(np.float32)
        parts = "3HD" if qkv_layout == "separate" else qkv_layout
        q, k, v = ref.split_qkv(qkv, HEADS, SIZE, parts)
        feeds = {"q": q, "k": k, "v": v} if qkv_layout == "separate" else {"qkv": qkv}
        feeds |= {"cu_seqlens": cu, "qkv_bias": bias}
        given = {name: r.standard_normal((2 * reach + 1, WIDTH)).astype(np.float32) for name in tables}
        attributes = attention_attributes(
            scale=0.9, qkv_layout=qkv_layout, has_qkv_bias=1, bias="disentangled", bias_range=reach,
            **{f"has_{name}": 1 for name in tables},
        )  # fmt: skip
        (y,) = run("PadfreeAttention", {**feeds, **given}, opset, **attributes)
        q, k, v = ref.split_qkv(qkv + bias, HEADS, SIZE, parts)
        check(y, ref.attention(q, k, v, cu, num_heads=HEADS, head_size=SIZE, scale=0.9, **given))


def test_attention_makes_nothing_of_tokens_by_tokens() -> None:
    """20,000 sequences of one token: T x T floats would be 1.6 GB a head, the body's largest value is [T,3*H*D]."""
    tokens = 20_000
    qkv = rng().standard_normal((tokens, 3 * WIDTH)).astype(np.float32)
    attributes = attention_attributes(scale=1.0)
    cu = np.arange(tokens + 1, dtype=np.int32)
    (y,) = run("PadfreeAttention", {"qkv": qkv, "cu_seqlens": cu}, 17, **attributes)
    np.testing.assert_allclose(y, qkv[:, 2 * WIDTH :], **TOLERANCE)


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


def linear_attributes(**given: Any) -> dict[str, Any]:
    flags = ("has_bias", "has_residual", "has_x_moments", "has_residual_moments", "has_moments", "gated", "rms")
    plain = {"activation": "none", "rotary_features": 0, "x_epsilon": 0.0, "residual_epsilon": 0.0}
    return {**plain, **dict.fromkeys(flags, 0), **given}


@opsets
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("flags", [1, 2, 4, 5, 6])  # of x, of the residual, of y; never the first two
def test_linear_with_moments(opset: int, dtype: type, flags: int, rms: int) -> None:
    of_x, of_residual, of_y = (flags >> i & 1 for i in range(3))
    r = rng()
    for tokens in (6, 0):
        x, residual = (r.standard_normal((tokens, 128)).astype(dtype) + dtype(i) for i in (3, -2))
        weight = (r.standard_normal((128, 128)) / 8).astype(dtype)
        feeds = {"x": x, "weight": weight, "residual": residual}
        if of_x:
            feeds["x_moments"] = ref.moments(x).astype(np.float32)
            feeds["column_sums"] = weight.sum(0, dtype=np.float32)
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
        for found in moments:
            check(found, ref.moments(expected))


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
            feeds |= {"x_moments": ref.moments(x).astype(np.float32), "column_sums": weight.sum(0)}
        attributes = linear_attributes(activation=activation, has_bias=1, gated=1, has_x_moments=normed)
        (y,) = run("PadfreeLinear", feeds, opset, **attributes)
        assert y.shape == (tokens, 24)
        check(y, ref.linear(**feeds, activation=activation, gated=True))


@opsets
@pytest.mark.parametrize("turned", [16, 32, 48])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_linear_turns_pairs(opset: int, turned: int, dtype: type) -> None:
    r = rng()
    for tokens in (6, 0):
        feeds = {
            "x": r.standard_normal((tokens, 24)).astype(dtype),
            "weight": (r.standard_normal((24, 48)) / 4).astype(dtype),
            "bias": r.standard_normal(48).astype(dtype),
            "positions": r.integers(0, 8192, tokens).astype(np.int32),
            "frequencies": frequencies(turned // 2),
        }
        attributes = linear_attributes(has_bias=1, rotary_features=turned)
        (y,) = run("PadfreeLinear", feeds, opset, **attributes)
        expected = ref.linear(**feeds, activation="none")
        check(y, expected, dtype, **(TOLERANCE if dtype == np.float32 else {"rtol": 1e-3, "atol": 1e-3}))


def frequencies(pairs: int) -> np.ndarray:
    """Those of theta 10000, the last pair left as it is."""
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
        places = r.integers(0, 8192, tokens).astype(np.int32)
        feeds = {"x": x, "positions": places, "frequencies": frequencies(SIZE // 2)[None]}
        options = {"head_size": SIZE, "num_heads": heads, "pairing": pairing}
        (y,) = run("PadfreeRotary", feeds, opset, **options)
        check(
            y,
            ref.rotary(**feeds, **options),
            dtype,
            **(TOLERANCE if dtype == np.float32 else {"rtol": 1e-3, "atol": 1e-3}),
        )
        np.testing.assert_array_equal(y[:, heads * SIZE :], x[:, heads * SIZE :])


def test_a_norm_between_two_products_is_what_the_moments_make_it() -> None:
    """LN(x) W + b, and x + LN(r), from x and r alone."""
    r = rng()
    x = r.standard_normal((5, 64)).astype(np.float32) * 3 + 7
    gamma, beta, weight = (r.standard_normal(shape).astype(np.float32) for shape in ((64,), (64,), (64, 64)))
    scaled, moments = gamma[:, None] * weight, ref.moments(x).astype(np.float32)
    normed = ref.normalise(ref.f64(x), gamma, beta, 1e-5)
    feeds = {"x": x, "weight": scaled, "bias": beta @ weight, "x_moments": moments, "column_sums": scaled.sum(0)}
    (y,) = run("PadfreeLinear", feeds, 17, **linear_attributes(has_bias=1, has_x_moments=1, x_epsilon=1e-5))
    # The mean is 2.3 deviations: that much of the product cancels.
    check(y, normed @ ref.f64(weight), rtol=1e-4, atol=1e-4)
    feeds = {"x": x, "weight": weight, "bias": beta, "residual": x, "residual_moments": moments}
    flags = {"has_bias": 1, "has_residual": 1, "has_residual_moments": 1, "residual_epsilon": 1e-5}
    (y,) = run("PadfreeLinear", {**feeds, "residual_scale": gamma}, 17, **linear_attributes(**flags))
    check(y, ref.f64(x) @ ref.f64(weight) + normed, rtol=1e-4, atol=1e-4)


@opsets
@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("flags", range(16))
def test_layer_norm(opset: int, rms: int, flags: int) -> None:
    bias, residual, beta, has_sum = (flags >> i & 1 for i in range(4))
    r = rng()
    for lead in ((6,), (2, 3), (0,)):
        tensors = {
            "x": (r.standard_normal((*lead, WIDTH)) + 3).astype(np.float32),
            "gamma": r.standard_normal(WIDTH).astype(np.float32),
        }
        if bias:
            tensors["bias"] = r.standard_normal(WIDTH).astype(np.float32)
        if residual:
            tensors["residual"] = r.standard_normal((*lead, WIDTH)).astype(np.float32)
        if beta:
            tensors["beta"] = r.standard_normal(WIDTH).astype(np.float32)
        outputs = run(
            "PadfreeLayerNorm",
            tensors,
            opset,
            epsilon=EPSILON,
            rms=rms,
            has_bias=bias,
            has_residual=residual,
            has_beta=beta,
            has_sum=has_sum,
        )
        expected = ref.layer_norm(**tensors, epsilon=EPSILON, rms=bool(rms))
        for actual, wanted in zip(outputs, expected[: 1 + has_sum], strict=True):
            check(actual, wanted)


@batches
@pytest.mark.parametrize("mode", ["first", "last", "mean", "max"])
@pytest.mark.parametrize("normalize", [0, 1])
def test_pool(batch: str, mode: str, normalize: int) -> None:
    for opset in OPSETS if batch == "filler and empty" else (17,):
        cu, tokens = cu_of(batch)
        x = poison((rng().standard_normal((tokens, WIDTH)) - 2).astype(np.float32), cu)
        (y,) = run("PadfreePool", {"x": x, "cu_seqlens": cu}, opset, mode=mode, normalize=normalize)
        check(y, ref.pool(x, cu, mode, bool(normalize)))


@opsets
def test_half_precision_bodies_compute_in_float32(opset: int) -> None:
    """fp16 in and out; between them only the output's rounding (2^-11 of values up to 8) may show."""
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
    flags = {"rms": 0, "has_bias": 0, "has_residual": 0, "has_beta": 0, "has_sum": 0}
    (y,) = run("PadfreeLayerNorm", {"x": x, "gamma": gamma}, opset, epsilon=1e-12, **flags)
    check(y, ref.layer_norm(x, gamma, epsilon=1e-12)[0], np.float16, rtol=1e-3, atol=1e-3)
    (y,) = run("PadfreePack", {"x": x[None], "token_index": np.array([0, -1], np.int32)}, opset)
    check(y, np.concatenate([x, x * 0]), np.float16)


def two_pools() -> onnx.ModelProto:
    nodes = [
        make_node("PadfreePool", ["x", "cu"], ["mean"], mode="mean", normalize=0),
        make_node("PadfreePool", ["x", "cu"], ["max"], mode="max", normalize=0),
        make_node("PadfreePool", ["x", "cu"], ["mean2"], mode="mean", normalize=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", 4]),
            helper.make_tensor_value_info("cu", TensorProto.INT32, ["N"]),
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", 4]) for n in ("mean", "max", "mean2")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_several_variants_of_one_operator_in_one_model() -> None:
    model = with_functions(two_pools())
    onnx.checker.check_model(model, full_check=True)
    assert len(model.functions) == 2, "one body a variant, shared by its nodes"
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    mean, maximum, mean2 = session.run(None, {"x": x, "cu": np.array([0, 3], np.int32)})
    np.testing.assert_array_equal(mean, x.mean(0)[None])
    np.testing.assert_array_equal(maximum, x.max(0)[None])
    np.testing.assert_array_equal(mean2, mean)


def test_without_functions_leaves_plain_nodes_with_all_attributes() -> None:
    source = with_functions(two_pools())
    before = source.SerializeToString()
    plain = without_functions(source)
    assert source.SerializeToString() == before, "the argument is left as it is"
    assert not plain.functions
    assert [(entry.domain, entry.version) for entry in plain.opset_import] == [("", 17), ("padfree", 1)]
    for node in plain.graph.node:
        assert (node.op_type, node.domain, node.overload) == ("PadfreePool", "padfree", "")
        assert {a.name for a in node.attribute} == {"mode", "normalize"}
    assert with_functions(plain).SerializeToString() == before


def test_other_functions_and_domains_are_left_alone() -> None:
    model = two_pools()
    other = helper.make_function(
        "other", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    model.functions.append(other)
    model.opset_import.append(helper.make_opsetid("other", 1))
    plain = without_functions(with_functions(model))
    assert [function.name for function in plain.functions] == ["Twice"]
    assert "other" in {entry.domain for entry in plain.opset_import}


@pytest.mark.parametrize(
    ("opset", "precision", "words"),
    [(13, "fp32", "opset is 13, allowed is 14 to 23"), (24, "fp32", "opset is 24"), (17, "int8", "'int8', allowed")],
)
def test_what_cannot_be_written_is_refused(opset: int, precision: str, words: str) -> None:
    with pytest.raises(RewriteError, match=words):
        functions_for(opset, two_pools().graph.node, precision)
