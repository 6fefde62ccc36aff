# SPDX-License-Identifier: Apache-2.0
"""PadfreeLinear in rewritten models: what it absorbs, that it computes the same, which near misses are left."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.onnx_tools import RewriteError, RewriteResult, rewrite
from padfree.onnx_tools.precision.element_types import check_element_types

from tests.support.encoder import HIDDEN, EncoderBuilder, one_layer
from tests.support.exports import load
from tests.support.messages import with_linear

from .agreement import assert_agree, run

INNER = 24
Form = Callable[[EncoderBuilder, str], str]


def number(e: EncoderBuilder, value: float) -> str:
    return e.constant(np.float32(value))


def gelu_div(e: EncoderBuilder, x: str) -> str:
    gate = e.op("Add", e.op("Erf", e.op("Div", x, number(e, math.sqrt(2)))), number(e, 1))
    return e.op("Mul", e.op("Mul", x, gate), number(e, 0.5))


def gelu_mul(e: EncoderBuilder, x: str) -> str:
    gate = e.op("Add", number(e, 1), e.op("Erf", e.op("Mul", number(e, math.sqrt(0.5)), x)))
    return e.op("Mul", e.op("Mul", number(e, 0.5), x), gate)


def gelu_pow(e: EncoderBuilder, x: str) -> str:
    cube = e.op("Mul", e.op("Pow", x, number(e, 3)), number(e, 0.044715))
    tanh = e.op("Tanh", e.op("Mul", e.op("Add", x, cube), number(e, math.sqrt(2 / math.pi))))
    return e.op("Mul", e.op("Mul", x, number(e, 0.5)), e.op("Add", tanh, number(e, 1)))


def gelu_products(e: EncoderBuilder, x: str) -> str:
    cube = e.op("Add", number(e, 1), e.op("Mul", e.op("Mul", number(e, 0.044715), x), x))
    tanh = e.op("Tanh", e.op("Mul", e.op("Mul", x, number(e, 0.7978845608)), cube))
    return e.op("Mul", e.op("Mul", number(e, 0.5), x), e.op("Add", number(e, 1), tanh))


def silu(e: EncoderBuilder, x: str) -> str:
    return e.op("Mul", x, e.op("Sigmoid", x))


def quick_gelu(e: EncoderBuilder, x: str) -> str:
    return e.op("Mul", x, e.op("Sigmoid", e.op("Mul", x, number(e, 1.702))))


FORMS: dict[str, tuple[Form, str]] = {
    "erf of a quotient": (gelu_div, "gelu"),
    "erf of a product": (gelu_mul, "gelu"),
    "Gelu": (lambda e, x: e.op("Gelu", x), "gelu"),
    "tanh with a power": (gelu_pow, "gelu_tanh"),
    "tanh with products": (gelu_products, "gelu_tanh"),
    "Gelu by tanh": (lambda e, x: e.op("Gelu", x, approximate="tanh"), "gelu_tanh"),
    "Relu": (lambda e, x: e.op("Relu", x), "relu"),
    "Max with 0": (lambda e, x: e.op("Max", x, number(e, 0)), "relu"),
    "sigmoid": (silu, "silu"),
}


def model_with(form: Form, *, inner: int = INNER, norm: bool = True) -> ModelProto:
    """One layer and a feed-forward network with this activation; without `norm` its last sum is the output."""
    e, hidden = one_layer()
    up = form(e, e.linear(hidden, HIDDEN, inner))
    total = e.op("Add", e.linear(up, inner, HIDDEN), hidden)
    e.op("Identity", e.norm(total) if norm else total, output="y")
    return e.model({"y": ["batch", "sequence", HIDDEN]}, opset=20)


def use_linear(model: ModelProto, precision: str = "fp32") -> RewriteResult:
    result = rewrite(model, precision=precision, strict=True, verify=False)
    return RewriteResult(with_linear(result.model), result.report)


def metadata(model: ModelProto) -> dict[str, Any]:
    return dict(json.loads(next(item.value for item in model.metadata_props if item.key == "padfree")))


def linear_layers(model: ModelProto) -> list[dict[str, Any]]:
    """The attributes of every PadfreeLinear, as far as the pass chooses them."""
    return [
        {item.name: helper.get_attribute_value(item) for item in node.attribute if item.name in layer()}
        for node in model.graph.node
        if node.op_type == "PadfreeLinear"
    ]


def layer(activation: str = "none", bias: int = 1, residual: int = 0) -> dict[str, Any]:
    return {"activation": activation.encode(), "has_bias": bias, "has_residual": residual}


def miss_reasons(model: ModelProto) -> list[str]:
    entry = next(item for item in metadata(model)["coverage"]["passes"] if item["name"] == "linear")
    return [item["reason"] for item in entry["missed"]]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_write_an_activation(form: str, precision: str) -> None:
    write, kind = FORMS[form]
    model = model_with(write)
    result = use_linear(model, precision)
    operators = [node.op_type for node in result.model.graph.node]
    assert operators == [
        "PadfreeSchedule", "PadfreeEmbedding", "PadfreeLinear", "PadfreeAttention", "PadfreeLinear", "PadfreeLayerNorm",
        "PadfreeLinear", "PadfreeLinear", "PadfreeLayerNorm", *(["Cast"] if precision != "fp32" else []),
    ]  # fmt: skip
    assert linear_layers(result.model) == [layer(), layer(), layer(kind), layer()]
    assert miss_reasons(result.model) == []
    if precision == "fp32":
        assert_agree(model, result)


def test_gemms_keep_their_names() -> None:
    plain = rewrite(model_with(silu), verify=False).model
    gemms = {node.name for node in plain.graph.node if node.op_type == "MatMul"}
    assert gemms == {node.name for node in with_linear(plain).graph.node if node.op_type == "PadfreeLinear"}


def test_the_norm_keeps_the_residual_and_gives_the_bias_away() -> None:
    result = use_linear(model_with(silu))
    for node in result.model.graph.node:
        if node.op_type == "PadfreeLayerNorm":
            flags = {item.name: item.i for item in node.attribute}
            assert (flags["has_bias"], flags["has_residual"], len(node.input)) == (0, 1, 4)
        if node.op_type == "PadfreeAttention":
            assert {item.name: item.i for item in node.attribute}["has_qkv_bias"] == 0


def test_a_residual_that_no_norm_adds() -> None:
    model = model_with(silu, norm=False)
    result = use_linear(model)
    assert linear_layers(result.model)[-1] == layer(residual=1)
    assert "Add" not in [node.op_type for node in result.model.graph.node]
    assert_agree(model, result)


def test_half_precision_computes_the_same() -> None:
    plain = rewrite(model_with(gelu_div), precision="fp16", verify=False).model
    rng = np.random.default_rng(5)
    feeds = {"input_ids": rng.integers(0, 20, 17).astype(np.int32), "seq_lens": np.array([9, 0, 8], np.int32)}
    (wanted,), (actual,) = run(plain, feeds), run(with_linear(plain), feeds)
    # Outputs of a norm, between 1 and 4: a few more or fewer roundings to 11 bits on the way.
    np.testing.assert_allclose(actual, wanted, atol=2e-2)


def test_weights_keep_their_bits() -> None:
    for precision in ("fp16", "bf16"):
        plain = rewrite(model_with(gelu_div), precision=precision, verify=False).model
        before = {item.name: item for item in plain.graph.initializer}
        after = with_linear(plain).graph.initializer
        assert {item.data_type for item in after} <= {item.data_type for item in before.values()}
        for item in after:
            source = before[item.name]
            assert (item.data_type, list(item.dims)) == (source.data_type, list(source.dims))
            assert helper_bytes(item) == helper_bytes(source)


def helper_bytes(tensor: TensorProto) -> bytes:
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor).tobytes()


def test_the_metadata_follow() -> None:
    plain = rewrite(model_with(gelu_div), verify=False).model
    before, after = metadata(plain), metadata(with_linear(plain))
    assert after["plugins"] == after["coverage"]["plugins"] == {**before["plugins"], "PadfreeLinear": 4}
    gemms = [{**item, "op": "MatMul"} for item in after["coverage"]["products"]["rewritten"] if item["weights"]]
    assert gemms == [item for item in before["coverage"]["products"]["rewritten"] if item["weights"]]
    rewritten = {name for node in with_linear(plain).graph.node for name in node.output}
    assert set(after["origins"]) <= rewritten
    assert set(after["origins"]) < set(before["origins"])
    with_bias_of_a_reader = {name for name in rewritten if name.endswith("_biased")}
    assert len(with_bias_of_a_reader) == 2  # one for each of the two norms
    assert not with_bias_of_a_reader & set(after["origins"])


def test_the_given_model_stays_as_it_is() -> None:
    plain = rewrite(model_with(gelu_div), precision="fp16", verify=False).model
    before = plain.SerializeToString(deterministic=True)
    with_linear(plain)
    assert plain.SerializeToString(deterministic=True) == before


def test_another_activation_stays_outside() -> None:
    model = model_with(quick_gelu)
    result = use_linear(model)
    assert linear_layers(result.model) == [layer(), layer(), layer(), layer()]
    (reason,) = miss_reasons(result.model)
    assert "(Sigmoid) does not lead to one of gelu, gelu_tanh, relu, sigmoid, silu in float32 alone" in reason
    assert_agree(model, result)


def test_what_else_is_read_stays_outside() -> None:
    """The values before the activation are an output as well."""
    e, hidden = one_layer()
    up = e.linear(hidden, HIDDEN, INNER)
    e.op("Identity", up, output="up")
    e.op("Identity", e.norm(e.op("Add", e.linear(silu(e, up), INNER, HIDDEN), hidden)), output="y")
    model = e.model({"up": ["batch", "sequence", INNER], "y": ["batch", "sequence", HIDDEN]})
    result = use_linear(model)
    assert linear_layers(result.model) == [layer(), layer(), layer(), layer()]
    assert "does not lead to one of" in miss_reasons(result.model)[0]
    assert_agree(model, result)


def test_sizes_that_are_no_multiples_of_8() -> None:
    model = model_with(silu, inner=20)
    result = use_linear(model)
    assert linear_layers(result.model) == [layer(), layer()]
    reasons = miss_reasons(result.model)
    assert len(reasons) == 2
    assert "multiplies by [16,20], whose sizes are not multiples of 8" in reasons[0]
    assert "multiplies by [20,16], whose sizes are not multiples of 8" in reasons[1]
    assert_agree(model, result)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_gemms_that_fp16_cannot_hold_are_left_alone(precision: str) -> None:
    e, hidden = one_layer()
    large = e.op("Mul", e.linear(hidden, HIDDEN, INNER), number(e, 6e4))  # float32, as are its neighbours
    small = e.op("Mul", e.linear(large, INNER, HIDDEN), number(e, 1e-5))
    e.op("Identity", e.norm(e.op("Add", small, hidden)), output="y")
    model = e.model({"y": ["batch", "sequence", HIDDEN]})
    plain = rewrite(model, precision=precision).model
    result = with_linear(plain)
    kept = [node.name for node in result.graph.node if node.op_type == "MatMul"]
    assert len(kept) == (1 if precision == "fp16" else 0)
    assert miss_reasons(result) == [
        f"'{name}' multiplies numbers that fp16 cannot hold, in float32; bf16 can" for name in kept
    ]
    assert len(linear_layers(result)) == 4 - len(kept)
    check_element_types(result, precision)


def test_a_bias_of_one_number_stays_an_add() -> None:
    e, hidden = one_layer()
    e.op("Add", e.op("MatMul", hidden, e.weight(HIDDEN, 8)), number(e, 0.3), output="y")
    model = e.model({"y": ["batch", "sequence", 8]})
    result = use_linear(model)
    assert linear_layers(result.model)[-1] == layer(bias=0)
    assert [node.op_type for node in result.model.graph.node][-1] == "Add"
    assert_agree(model, result)


def test_gemms_of_a_head_are_left_alone() -> None:
    """The head is after the pool; the GEMM before it, which multiplies only first tokens, belongs to the last layer."""
    e, hidden = one_layer()
    first = e.op("Gather", hidden, e.constant(0, np.int64), axis=1)
    e.op("Identity", e.linear(first, HIDDEN, 8), output="y")
    model = e.model({"y": ["batch", 8]})
    result = use_linear(model)
    assert linear_layers(result.model) == [layer(), layer()]
    operators = [node.op_type for node in result.model.graph.node]
    assert operators.count("MatMul") == 1
    assert operators.index("MatMul") > max(at for at, name in enumerate(operators) if name == "PadfreePool")
    assert_agree(model, result)


def test_a_model_that_was_not_rewritten() -> None:
    with pytest.raises(RewriteError, match="carries no padfree metadata; rewrite it first"):
        with_linear(model_with(silu))


def test_nodes_that_read_an_output_in_float32_keep_names_apart() -> None:
    """A weighted sum in float32 and the caller both read the output of tokens, which products made in fp16."""
    plain = rewrite(load("st_weightedmean_dn_ts"), precision="fp16", verify=False).model
    names = [node.name for node in with_linear(plain).graph.node]
    assert len(names) == len(set(names))
