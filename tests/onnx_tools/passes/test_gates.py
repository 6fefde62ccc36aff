# SPDX-License-Identifier: Apache-2.0
"""Gated feed-forwards as one product: all ways to write them, equal results, what stays and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper
from padfree.onnx_tools import RewriteResult, rewrite
from padfree.onnx_tools.cost import Lengths, flops
from padfree.onnx_tools.gemms import GemmShape

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import HIDDEN, EncoderBuilder, one_layer
from tests.support.messages import run as run_exact
from tests.support.messages import with_linear, with_rounding

INNER = 24
# Outputs of a norm, between 1 and 4: a few more or fewer roundings to 11 or 8 bits on the way.
ALLOWED = {"fp16": 2e-2, "bf16": 2e-1}
Up = Callable[[EncoderBuilder, str], tuple[str, str]]
Activate = Callable[[EncoderBuilder, str], str]


def matmul(e: EncoderBuilder, x: str, columns: int = INNER) -> str:
    return e.op("MatMul", x, e.weight(HIDDEN, columns))


def gelu_in_float32(e: EncoderBuilder, x: str) -> str:
    """As in T5: in a half precision graph the Pow and what follows it stay float32."""
    cube = e.op("Mul", e.op("Pow", x, e.constant(3.0)), e.constant(0.044715))
    tanh = e.op("Tanh", e.op("Mul", e.op("Add", x, cube), e.constant(np.sqrt(2 / np.pi))))
    return e.op("Mul", e.op("Mul", x, e.constant(0.5)), e.op("Add", tanh, e.constant(1.0)))


ACTIVATIONS: dict[str, tuple[Activate, str]] = {
    "gelu": (lambda e, x: e.op("Gelu", x), "gelu"),
    "gelu by tanh": (gelu_in_float32, "gelu_tanh"),
    "relu": (lambda e, x: e.op("Relu", x), "relu"),
    "silu": (lambda e, x: e.op("Mul", x, e.op("Sigmoid", x)), "silu"),
    "sigmoid": (lambda e, x: e.op("Sigmoid", x), "sigmoid"),
    "nothing": (lambda _, x: x, "none"),
}


def two_matmuls(e: EncoderBuilder, x: str) -> tuple[str, str]:
    return matmul(e, x), matmul(e, x)


def two_with_biases(e: EncoderBuilder, x: str) -> tuple[str, str]:
    return e.linear(x, HIDDEN, INNER), e.linear(x, HIDDEN, INNER)


def two_with_one_bias(e: EncoderBuilder, x: str) -> tuple[str, str]:
    return e.linear(x, HIDDEN, INNER), matmul(e, x)


def pieces(e: EncoderBuilder, y: str, *sizes: int) -> list[str]:
    names = [f"{y}_piece{i}" for i in range(len(sizes))]
    e.nodes.append(helper.make_node("Split", [y, e.axes(*sizes)], names, axis=-1))
    return names


def split(e: EncoderBuilder, x: str) -> tuple[str, str]:
    u, v = pieces(e, matmul(e, x, 2 * INNER), INNER, INNER)
    return u, v


def split_in_two(e: EncoderBuilder, x: str) -> tuple[str, str]:
    y = e.linear(x, HIDDEN, 2 * INNER)
    e.nodes.append(helper.make_node("Split", [y], ["u", "v"], axis=2, num_outputs=2))
    return "u", "v"


def split_with_bias_after(e: EncoderBuilder, x: str) -> tuple[str, str]:
    u, v = split(e, x)
    return e.op("Add", u, e.weight(INNER)), v


def cut(e: EncoderBuilder, y: str, start: int, end: int, step: int = 1) -> str:
    return e.op("Slice", y, e.axes(start), e.axes(end), e.axes(-1), e.axes(step))


def slices(e: EncoderBuilder, x: str) -> tuple[str, str]:
    y = e.linear(x, HIDDEN, 2 * INNER)
    return cut(e, y, 0, INNER), cut(e, y, INNER, 2**62)


def slices_from_the_end(e: EncoderBuilder, x: str) -> tuple[str, str]:
    y = matmul(e, x, 2 * INNER)
    return cut(e, y, -INNER, 2**62), cut(e, y, 0, -INNER)


def every_other_column(e: EncoderBuilder, x: str) -> tuple[str, str]:
    y = e.linear(x, HIDDEN, 2 * INNER)
    return cut(e, y, 0, 2**62, 2), cut(e, y, 1, 2**62, 2)


WAYS: list[Up] = [
    *(two_matmuls, two_with_biases, two_with_one_bias, split, split_in_two, split_with_bias_after, slices),
    *(slices_from_the_end, every_other_column),
]


def model_of(up: Up, activate: Activate, *, swapped: bool = False, first: bool = True) -> ModelProto:
    """One layer and a gated feed-forward network; `first`: the activated factor is Mul's first input."""
    e, hidden = one_layer()
    u, v = up(e, hidden)
    if swapped:
        u, v = v, u
    factors = [activate(e, u), v]
    gated = e.op("Mul", *(factors if first else factors[::-1]))
    e.op("Identity", e.norm(e.op("Add", e.linear(gated, INNER, HIDDEN), hidden)), output="y")
    return e.model({"y": ["batch", "sequence", HIDDEN]}, opset=20)


def use_gates(model: ModelProto, precision: str = "fp32", interface: str = "packed") -> RewriteResult:
    result = rewrite(model, precision=precision, interface=interface, verify=False)
    return RewriteResult(with_linear(result.model), result.report)


def gated_linears(model: ModelProto) -> list[tuple[str, int]]:
    """Activation and bias of every gated product."""
    results = []
    for node in model.graph.node:
        flags = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type == "PadfreeLinear" and flags["gated"]:
            results.append((flags["activation"].decode(), flags["has_bias"]))
    return results


def metadata(model: ModelProto) -> dict[str, Any]:
    return dict(json.loads(next(item.value for item in model.metadata_props if item.key == "padfree")))


def passes(model: ModelProto) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in metadata(model)["coverage"]["passes"]}


def reasons(model: ModelProto) -> list[str]:
    return [miss["reason"] for miss in passes(model).get("gates", {"missed": []})["missed"]]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str) -> None:
    activate, kind = ACTIVATIONS[activation]
    model = model_of(two_matmuls, activate)
    for interface in INTERFACES:
        result = use_gates(model, interface=interface)
        assert gated_linears(result.model) == [(kind, 0)]
        assert_agree(model, result)
    assert not {"Mul", "Sigmoid", "Gelu", "Tanh", "Relu"} & {node.op_type for node in result.model.graph.node}
    assert passes(result.model)["gates"] == {"name": "gates", "replaced": 1, "missed": []}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("up", WAYS)
def test_every_way_to_write_two_halves(up: Up, swapped: bool) -> None:
    model = model_of(up, ACTIVATIONS["silu"][0], swapped=swapped, first=not swapped)
    result = use_gates(model)
    has_bias = up not in (two_matmuls, split, slices_from_the_end)
    assert gated_linears(result.model) == [("silu", int(has_bias))]
    assert not {"Split", "Slice", "MatMul"} & {node.op_type for node in result.model.graph.node}
    assert_agree(model, result)


@pytest.mark.parametrize("activation", ["gelu", "gelu by tanh", "sigmoid"])
@pytest.mark.parametrize("up", [two_with_one_bias, slices])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision(precision: str, up: Up, activation: str) -> None:
    model = model_of(up, ACTIVATIONS[activation][0])
    plain = rewrite(model, verify=False).model
    result = use_gates(model, precision).model
    assert [kind for kind, _ in gated_linears(result)] == [ACTIVATIONS[activation][1]]
    rng = np.random.default_rng(5)
    feeds = {"input_ids": rng.integers(0, 20, 17).astype(np.int32), "seq_lens": np.array([9, 0, 8], np.int32)}
    (wanted,) = run_exact(plain, feeds, ["y"])
    (actual,) = run_exact(with_rounding(result, precision), feeds, ["y"])
    np.testing.assert_allclose(actual, wanted, atol=ALLOWED[precision])


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_columns_come_in_blocks_with_their_bits(precision: str) -> None:
    model = model_of(slices, ACTIVATIONS["gelu"][0])
    plain = rewrite(model, precision=precision, verify=False).model
    rewritten = with_linear(plain)
    before, after = ({item.name: item for item in one.graph.initializer} for one in (plain, rewritten))
    node = next(
        node
        for node in rewritten.graph.node
        if node.name in {x.name for x in plain.graph.node} and "gated" in node.input[1]
    )
    source = next(item for item in plain.graph.node if item.name == node.name)
    weight, moved = before[source.input[1]], after[node.input[1]]
    assert moved.data_type == weight.data_type
    values, actual = (numpy_helper.to_array(item) for item in (weight, moved))
    for block in range(INNER // 8):
        columns = actual[:, 16 * block : 16 * block + 16]
        np.testing.assert_array_equal(columns[:, :8], values[:, 8 * block : 8 * block + 8])
        np.testing.assert_array_equal(columns[:, 8:], values[:, INNER + 8 * block : INNER + 8 * block + 8])


def test_shared_weights_are_stored_once() -> None:
    e, hidden = one_layer()
    u, v, down = e.weight(HIDDEN, INNER), e.weight(HIDDEN, INNER), e.weight(INNER, HIDDEN)
    for _ in range(2):
        gate = e.op("Mul", e.op("Relu", e.op("MatMul", hidden, u)), e.op("MatMul", hidden, v))
        hidden = e.norm(e.op("Add", e.op("MatMul", gate, down), hidden))
    e.op("Identity", hidden, output="y")
    model = e.model({"y": ["batch", "sequence", HIDDEN]})
    result = use_gates(model)
    nodes = [node for node in result.model.graph.node if "gated_weight" in "".join(node.input)]
    assert len(nodes) == 2
    assert len({node.input[1] for node in nodes}) == 1
    assert_agree(model, result)


def test_one_weight_for_both_factors() -> None:
    e, hidden = one_layer()
    weight = e.weight(HIDDEN, INNER)
    u, v = (e.op("MatMul", hidden, weight) for _ in range(2))
    e.op("Mul", e.op("Relu", u), v, output="y")
    model = e.model({"y": ["batch", "sequence", INNER]})
    result = use_gates(model)
    assert gated_linears(result.model) == [("relu", 0)]
    assert_agree(model, result)


def test_the_work_is_that_of_two_gemms() -> None:
    plain = rewrite(model_of(two_matmuls, ACTIVATIONS["gelu"][0]), verify=False).model
    counted = [
        [GemmShape.from_dict(item) for item in metadata(one)["coverage"]["products"]["rewritten"]]
        for one in (plain, with_linear(plain))
    ]
    assert sum(item.count for item in counted[0]) == sum(item.count for item in counted[1]) + 1
    lengths = Lengths(2, 5.0, 7)
    before, after = (sum(flops(item, lengths) for item in items) for items in counted)
    assert after == pytest.approx(before)


def stays(write: Callable[[EncoderBuilder, str], str], columns: int = INNER) -> ModelProto:
    e, hidden = one_layer()
    e.op("Identity", write(e, hidden), output="y")
    return e.model({"y": ["batch", "sequence", columns]}, opset=20)


def needed_elsewhere(e: EncoderBuilder, x: str) -> str:
    u, v = split(e, x)
    return e.op("Add", e.op("Mul", e.op("Relu", u), v), v)


def activated_is_needed_elsewhere(e: EncoderBuilder, x: str) -> str:
    u, v = two_matmuls(e, x)
    u = e.op("Relu", u)
    return e.op("Add", e.op("Mul", u, v), u)


def both_activated(e: EncoderBuilder, x: str) -> str:
    u, v = two_matmuls(e, x)
    return e.op("Mul", e.op("Relu", u), e.op("Sigmoid", v))


def unknown_activation(e: EncoderBuilder, x: str) -> str:
    u, v = split(e, x)
    return e.op("Mul", e.op("Tanh", u), v)


def other_rows(e: EncoderBuilder, x: str) -> str:
    return e.op("Mul", e.op("Relu", matmul(e, x)), matmul(e, e.norm(x)))


def three_pieces(e: EncoderBuilder, x: str) -> str:
    u, v, w = pieces(e, matmul(e, x, 3 * INNER), INNER, INNER, INNER)
    return e.op("Add", e.op("Mul", e.op("Relu", u), v), w)


def a_piece_and_a_matmul(e: EncoderBuilder, x: str) -> str:
    u, v = split(e, x)
    return e.op("Add", e.op("Mul", e.op("Relu", u), matmul(e, x)), v)


def matmul_that_is_read_whole(e: EncoderBuilder, x: str) -> str:
    y = matmul(e, x, 2 * INNER)
    u, v = pieces(e, y, INNER, INNER)
    return e.op("Concat", e.op("Mul", e.op("Relu", u), v), e.op("Relu", y), axis=-1)


def twice_itself(e: EncoderBuilder, x: str) -> str:
    y = e.op("Relu", matmul(e, x))
    return e.op("Mul", e.op("Mul", y, y), e.op("Add", matmul(e, x), y))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (needed_elsewhere, "which something else needs too"),
        (activated_is_needed_elsewhere, "which something else needs too"),
        (both_activated, "both activated"),
        (unknown_activation, "(Tanh) does not lead to one of gelu, gelu_tanh, relu, sigmoid, silu"),
        (other_rows, ""),
        (three_pieces, ""),
        (a_piece_and_a_matmul, ""),
        (matmul_that_is_read_whole, ""),
        (twice_itself, ""),
    ],
)
def test_what_stays(write: Callable[[EncoderBuilder, str], str], reason: str) -> None:
    model = stays(write, 3 * INNER if write is matmul_that_is_read_whole else INNER)
    result = use_gates(model)
    assert gated_linears(result.model) == []
    actual = reasons(result.model)
    assert len(actual) == bool(reason)
    assert reason in "".join(actual)
    assert_agree(model, result)


def test_halves_that_8_does_not_divide() -> None:
    """A product takes the size [16,24], but its halves of 12 columns make no whole blocks."""

    def write(e: EncoderBuilder, x: str) -> str:
        u, v = pieces(e, matmul(e, x, 24), 12, 12)
        return e.op("Mul", e.op("Relu", u), v)

    model = stays(write, 12)
    result = use_gates(model)
    assert gated_linears(result.model) == []
    assert "multiplies [T,12] of GEMMs, and 12 is no multiple of 8" in reasons(result.model)[0]
    assert_agree(model, result)
