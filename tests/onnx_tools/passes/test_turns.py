# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings in the products that make Q and K: that attention stays the same, what stays outside and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools.analysis.graph import tidy
from padfree.onnx_tools.files.graph_io import export_model
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.operators import DOMAIN, check_nodes, make_node, with_functions
from padfree.onnx_tools.passes import PassResult
from padfree.onnx_tools.passes.norms.norm_folding import norm_folding
from padfree.onnx_tools.passes.products.turns import turns
from padfree.onnx_tools.precision.element_types import check_element_types

from tests.onnx_tools.agreement import run

WIDTH, TOKENS = 64, 21
FP32 = {"rtol": 1e-5, "atol": 1e-5}
# Means of V of magnitude 3: Q and K are rounded to 11 bits once instead of twice.
FP16 = {"rtol": 0.0, "atol": 2e-2}
ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@dataclass
class Packed:
    """Writes a graph of packed products, rotary embeddings and attentions on the input "x" [T,64]."""

    dtype: str = "float32"
    nodes: list[Any] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def constant(self, *shape: int, scale: float = 0.15, dtype: str = "") -> str:
        return self.given(self.rng.standard_normal(shape) * scale, dtype)

    def given(self, values: Any, dtype: str = "") -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values).astype(dtype or self.dtype), name))
        return name

    def add(self, op: str, inputs: list[str], **attributes: Any) -> str:
        output = f"{op.removeprefix('Padfree').lower()}{len(self.nodes)}"
        if op.startswith("Padfree"):
            self.nodes.append(make_node(op, inputs, [output], name=output, **attributes))
        else:
            self.nodes.append(helper.make_node(op, inputs, [output], name=output))
        return output

    def linear(
        self, x: str, columns: int = WIDTH, *, weight: str = "", bias: bool = True, activation: str = "none"
    ) -> str:
        given = [x, weight or self.constant(WIDTH, columns), *([self.constant(columns)] if bias else [])]
        flags = dict.fromkeys(("has_residual", "has_x_moments", "has_residual_moments", "has_moments"), 0)
        flags |= {"gated": 0, "rms": 0, "rotary_features": 0, "has_bias": int(bias)}
        epsilons = {"x_epsilon": 0.0, "residual_epsilon": 0.0}
        return self.add("PadfreeLinear", given, activation=activation, **flags, **epsilons)

    def rotary(self, x: str, heads: int, size: int, *, pairing: str = "half", frequencies: str = "") -> str:
        frequencies = frequencies or self.given(100.0 ** -np.linspace(0, 1, size // 2)[np.newaxis], "float32")
        return self.add(
            "PadfreeRotary", [x, "positions", frequencies], head_size=size, num_heads=heads, pairing=pairing
        )

    def norm(self, x: str) -> str:
        flags = {"rms": 0, "has_bias": 0, "has_residual": 0, "has_beta": 1, "has_sum": 0}
        return self.add("PadfreeLayerNorm", [x, self.constant(WIDTH), self.constant(WIDTH)], **flags, epsilon=0.1)

    def attention(self, *qkv: str, heads: int, kv_heads: int = 0, size: int, layout: str = "") -> str:
        flags = {"has_qkv_bias": 0, "has_tasks": 0, "max_seq_len": 0, "window_left": 2, "window_right": -1}
        return self.add(
            "PadfreeAttention", [*qkv, "cu_seqlens"], **flags, num_heads=heads, num_kv_heads=kv_heads or heads,
            head_size=size, scale=0.3, qkv_layout=layout or ("3HD" if len(qkv) == 1 else "separate"), bias="none",
            bias_range=0, has_k_position=0, has_q_position=0,
        )  # fmt: skip

    def model(self, *outputs: str) -> ModelProto:
        kind = ELEMENTS[self.dtype]
        inputs = [
            helper.make_tensor_value_info("x", kind, ["T", WIDTH]),
            helper.make_tensor_value_info("positions", TensorProto.INT32, ["T"]),
            helper.make_tensor_value_info("cu_seqlens", TensorProto.INT32, ["B1"]),
        ]
        values = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "packed", inputs, values, self.constants)
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def turned(model: ModelProto, precision: str = "fp32", *, norms: bool = False) -> tuple[ModelProto, PassResult]:
    graph = gs.import_onnx(model)
    result = turns(graph, precision)
    tidy(graph)
    if norms:
        assert norm_folding(graph, precision).replaced
        tidy(graph)
    made = export_model(graph, Model(model)).whole()
    made.ir_version = model.ir_version
    check_nodes(made)
    check_element_types(made, precision)
    return made, result


def assert_same(model: ModelProto, made: ModelProto, precision: str = "fp32") -> None:
    dtype = "float32" if precision == "fp32" else "float16"
    lengths = [9, 0, 1, 11]
    feeds = {
        "x": np.random.default_rng(2).standard_normal((TOKENS, WIDTH)).astype(dtype),
        "positions": np.concatenate([np.arange(length) for length in lengths]).astype(np.int32),
        "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
    }
    before, after = (run(with_functions(item, precision), feeds) for item in (model, made))
    for wanted, found in zip(before, after, strict=True):
        assert wanted.dtype == found.dtype
        np.testing.assert_allclose(found, wanted, **(FP32 if precision == "fp32" else FP16))


def operators(model: ModelProto) -> list[str]:
    return [node.op_type.removeprefix("Padfree") for node in model.graph.node]


def features(model: ModelProto) -> list[int]:
    """How many columns every PadfreeLinear turns."""
    return [item.i for node in model.graph.node for item in node.attribute if item.name == "rotary_features"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(2, 2, 32), (4, 4, 16), (4, 1, 16), (1, 1, 128), (6, 2, 48)])
def test_one_product_for_q_k_and_v(heads: int, kv_heads: int, size: int, pairing: str, precision: str) -> None:
    p = Packed("float32" if precision == "fp32" else "float16")
    qkv = p.linear("x", (heads + 2 * kv_heads) * size)
    rotated = p.rotary(qkv, heads + kv_heads, size, pairing=pairing)
    model = p.model(p.attention(rotated, heads=heads, kv_heads=kv_heads, size=size))
    made, result = turned(model, precision)
    assert (result, operators(made)) == (PassResult("turns", 1), ["Linear", "Attention"])
    assert features(made) == [(heads + kv_heads) * size]
    assert made.graph.node[0].output[0] == "rotary1_pairs"  # it is not what the model has under another name
    assert_same(model, made, precision)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_products_of_their_own(pairing: str) -> None:
    p = Packed()
    q = p.rotary(p.linear("x", 64), 4, 16, pairing=pairing)
    k = p.rotary(p.linear("x", 32, bias=False), 2, 16, pairing=pairing)
    model = p.model(p.attention(q, k, p.linear("x", 32), heads=4, kv_heads=2, size=16))
    made, result = turned(model)
    assert (result.replaced, operators(made)) == (2, ["Linear"] * 3 + ["Attention"])
    assert features(made) == [64, 32, 0]
    assert_same(model, made)


def test_a_part_of_a_head() -> None:
    """Frequencies of 0 leave their pairs as they are, and every layer has its own."""
    p = Packed()
    layers = []
    for theta in (10.0, 1000.0):
        frequencies = np.where(np.arange(16) < 4, theta ** -np.linspace(0, 1, 16), 0)
        rotated = p.rotary(p.linear("x", 192), 4, 32, frequencies=p.given(frequencies[np.newaxis], "float32"))
        layers.append(p.attention(rotated, heads=2, size=32))
    model = p.model(*layers)
    made, result = turned(model)
    assert (result.replaced, operators(made)) == (2, ["Linear", "Attention"] * 2)
    assert_same(model, made)


def test_layers_share_weights_and_frequencies() -> None:
    p = Packed()
    weight, frequencies = p.constant(WIDTH, 192), p.given(10.0 ** -np.linspace(0, 1, 16)[np.newaxis], "float32")
    x, layers = "x", []
    for _ in range(2):
        rotated = p.rotary(p.linear(x, 192, weight=weight), 4, 32, frequencies=frequencies)
        layers.append(p.attention(rotated, heads=2, size=32))
        x = layers[-1]
    model = p.model(*layers)
    made, result = turned(model)
    assert result.replaced == 2
    products = [node for node in made.graph.node if node.op_type == "PadfreeLinear"]
    assert products[0].input[1] == products[1].input[1]
    assert products[0].input[-1] == products[1].input[-1]
    assert_same(model, made)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_norm_ahead_goes_into_the_product(precision: str) -> None:
    p = Packed("float32" if precision == "fp32" else "float16")
    rotated = p.rotary(p.linear(p.norm(p.linear("x")), 192), 4, 32)
    model = p.model(p.attention(rotated, heads=2, size=32))
    made, _ = turned(model, precision, norms=True)
    assert operators(made) == ["Linear", "Linear", "Attention"]
    assert_same(model, made, precision)


def small_heads(p: Packed) -> list[str]:
    return [p.attention(p.rotary(p.linear("x", 48), 4, 8), heads=2, size=8)]


def odd_heads(p: Packed) -> list[str]:
    return [p.attention(p.rotary(p.linear("x", 144), 4, 24), heads=2, size=24)]


def q_alone(p: Packed) -> list[str]:
    q = p.rotary(p.linear("x", 32), 2, 16)
    return [p.attention(q, p.linear("x", 32), p.linear("x", 32), heads=2, size=16)]


def q_alone_of_three(p: Packed) -> list[str]:
    return [p.attention(p.rotary(p.linear("x", 96), 2, 16), heads=2, size=16)]


def other_pairs(p: Packed) -> list[str]:
    q, k = (p.rotary(p.linear("x", 32), 2, 16, pairing=pairing) for pairing in ("half", "interleaved"))
    return [p.attention(q, k, p.linear("x", 32), heads=2, size=16)]


def read_elsewhere(p: Packed) -> list[str]:
    rotated = p.rotary(p.linear("x", 96), 4, 16)
    return [p.attention(rotated, heads=2, size=16), p.add("Relu", [rotated])]


def product_read_elsewhere(p: Packed) -> list[str]:
    qkv = p.linear("x", 96)
    return [p.attention(p.rotary(qkv, 4, 16), heads=2, size=16), p.add("Relu", [qkv])]


def product_with_activation(p: Packed) -> list[str]:
    return [p.attention(p.rotary(p.linear("x", 96, activation="gelu"), 4, 16), heads=2, size=16)]


def no_product(p: Packed) -> list[str]:
    qkv = p.add("Relu", [p.linear("x", 96)])
    return [p.attention(p.rotary(qkv, 4, 16), heads=2, size=16)]


def k_of_no_product(p: Packed) -> list[str]:
    q, k = p.rotary(p.linear("x", 32), 2, 16), p.rotary(p.add("Relu", [p.linear("x", 32)]), 2, 16)
    return [p.attention(q, k, p.linear("x", 32), heads=2, size=16)]


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (small_heads, "turns heads of 8 columns, which are no multiple of 16"),
        (odd_heads, "turns heads of 24 columns, which are no multiple of 16"),
        (q_alone, "reads a Q and a K of which one alone is turned"),
        (q_alone_of_three, "has other heads than those that are turned ahead of it"),
        (other_pairs, "reads a Q and a K whose pairs are different columns"),
        (read_elsewhere, "turns what something else than one attention needs"),
        (product_read_elsewhere, "turns what something else than one attention needs"),
        (product_with_activation, "makes by an activation, a gate or a residual"),
        (no_product, "which no PadfreeLinear makes"),
        (k_of_no_product, "which no PadfreeLinear makes"),
    ],
)
def test_what_stays(write: Any, reason: str) -> None:
    p = Packed()
    model = p.model(*write(p))
    made, result = turned(model)
    assert result.replaced == 0
    assert len(result.missed) == 1
    assert reason in result.missed[0].reason
    assert operators(made) == operators(model)
    assert features(made) == [0] * len(features(made))
    assert_same(model, made)


def test_attention_without_turns_is_no_miss() -> None:
    p = Packed()
    model = p.model(p.attention(p.linear("x", 96), heads=2, size=16))
    assert turned(model)[1] == PassResult("turns", 0)
