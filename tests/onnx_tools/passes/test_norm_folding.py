# SPDX-License-Identifier: Apache-2.0
"""Layer norms folded into the GEMMs around them: what is left, equal results, what stays and why."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from padfree.onnx_tools import RewriteResult, rewrite
from padfree.onnx_tools.operators import DOMAIN
from padfree.onnx_tools.passes import PassResult
from padfree.onnx_tools.passes.norms.norm_folding import norm_folding
from padfree.onnx_tools.precision.element_types import check_element_types
from padfree.onnx_tools.precision.rounded_weights import round_to, to_float32
from padfree.onnx_tools.synthetic import bert_model

from tests.onnx_tools.agreement import assert_agree, run
from tests.support.messages import with_linear
from tests.support.samples import PLAIN_POOL

from . import packed_graphs
from .packed_graphs import WIDTH, PackedGraph, activations, operators, run_passes

TOKENS = 5
# Outputs between 1 and 5, whose last bit is at most 2^-9, after a few more or fewer roundings to 11 bits.
FP16 = {"rtol": 0.0, "atol": 1e-2}


def fold(model: ModelProto, precision: str = "fp32") -> tuple[ModelProto, PassResult]:
    rewritten, (result,) = run_passes(model, precision, norm_folding)
    return rewritten, result


def assert_same(model: ModelProto, rewritten: ModelProto, precision: str = "fp32") -> None:
    packed_graphs.assert_same(model, rewritten, precision, {"x": activations(TOKENS, precision)}, FP16)


def flags(model: ModelProto) -> list[set[str]]:
    """The flags of every PadfreeLinear, without the prefix "has_"."""
    return [
        {item.name.removeprefix("has_") for item in node.attribute if item.name.startswith("has_") and item.i}
        for node in model.graph.node
        if node.op_type == "PadfreeLinear"
    ]


def rms_flags(model: ModelProto) -> list[int]:
    """The attribute `rms` of every PadfreeLinear."""
    return [item.i for node in model.graph.node for item in node.attribute if item.name == "rms"]


def pool(p: PackedGraph, x: str, offsets: str, mode: str, normalize: int = 0) -> str:
    return p.padfree("PadfreePool", "rows", [x, offsets], **{**PLAIN_POOL, "mode": mode, "normalize": normalize})


def encoder(p: PackedGraph, x: str) -> str:
    """A norm, a feed-forward network, its residual and a norm that a product reads."""
    hidden = p.norm(p.linear(x), x)
    down = p.linear(p.linear(hidden, columns=128, activation="gelu"), rows=128)
    return p.linear(p.norm(down, hidden), columns=24)


def network_with_norms_ahead(p: PackedGraph) -> list[str]:
    """Two layers, with their sums' operands in both orders, and the norm after them."""
    first = p.norm("x", p.linear("x", bias=""), bias=p.constant(WIDTH), sum_output=True)
    down = p.linear(p.linear(first, columns=128, activation="gelu"), rows=128)
    second = p.norm(down, f"{first}_total", beta=False, sum_output=True)
    return [p.norm(f"{second}_total", p.linear(p.linear(second))), f"{second}_total"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_norms_ahead_of_layers_go(precision: str) -> None:
    """The sums remain without a norm, under their old names."""
    p = PackedGraph(precision)
    model = p.model(*network_with_norms_ahead(p))
    rewritten, result = fold(model, precision)
    assert (result.replaced, operators(rewritten)) == (2, [*["Linear"] * 5, "LayerNorm"])
    assert [miss.reason for miss in result.missed] == ["'norm7' makes the output 'norm7'"]
    assert flags(rewritten) == [
        {"bias", "residual", "moments"},
        {"bias", "x_moments"},
        {"bias", "residual", "moments"},
        {"bias", "x_moments"},
        {"bias"},
    ]
    assert [node.output[0] for node in rewritten.graph.node if node.op_type != "PadfreeLayerNorm"] == [
        "norm1_total", "linear2", "norm4_total", "linear5", "linear6",
    ]  # fmt: skip
    assert_same(model, rewritten, precision)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_rms_norms_go(precision: str) -> None:
    """One ahead of a layer, and one whose rows, far from a mean of 0, go into a product and a sum."""
    p = PackedGraph(precision)
    ahead = p.norm("x", p.linear("x", bias=p.constant(WIDTH, center=3.0)), beta=False, rms=1, sum_output=True)
    after = p.norm(p.linear(p.linear(ahead), residual=f"{ahead}_total"), beta=False, rms=1)
    model = p.model(p.linear(after), p.linear("x", residual=after))
    rewritten, result = fold(model, precision)
    assert (result, operators(rewritten)) == (PassResult("norm folding", 2), ["Linear"] * 5)
    assert [item for item in flags(rewritten) if "x_moments" in item] == [{"bias", "x_moments"}] * 2
    assert rms_flags(rewritten) == [0, 1, 0, 1, 1]
    assert_same(model, rewritten, precision)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_norm_goes_into_a_gated_gemm(precision: str) -> None:
    p = PackedGraph(precision)
    norm = p.norm(p.linear("x"), "x")
    model = p.model(p.linear(norm, columns=2 * WIDTH, activation="silu", gated=True))
    rewritten, result = fold(model, precision)
    assert (result.replaced, flags(rewritten)[1]) == (1, {"bias", "x_moments"})
    assert_same(model, rewritten, precision)


def test_a_norm_of_what_two_gemms_make() -> None:
    """The GEMM whose result nothing else needs takes the other's result as its residual."""
    p = PackedGraph()
    stream = p.linear("x")
    norm = p.norm(stream, p.linear(stream), sum_output=True)
    model = p.model(p.linear(p.linear(norm), residual=f"{norm}_total"))
    rewritten, result = fold(model)
    assert (result, operators(rewritten)) == (PassResult("norm folding", 1), ["Linear"] * 4)
    assert flags(rewritten)[1] == {"bias", "residual", "moments"}
    assert_same(model, rewritten)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("mode", ["first", "last"])
def test_rows_that_are_taken_of_a_norm_are_normed_alone(mode: str, precision: str) -> None:
    """Rows of the sum that the product makes, and of one that other nodes use as well."""
    p = PackedGraph(precision)
    offsets = p.initializer([0, 2, TOKENS], "int32")
    hidden = p.norm(p.linear("x"), "x", bias=p.constant(WIDTH))
    ahead = p.norm(p.linear(p.linear(hidden)), hidden, beta=False, rms=1, sum_output=True)
    taken = [pool(p, norm, offsets, mode) for norm in (hidden, ahead)]
    model = p.model(*taken, p.linear(p.linear(ahead), residual=f"{ahead}_total"))
    rewritten, result = fold(model, precision)
    assert result == PassResult("norm folding", 2)
    assert sorted(operators(rewritten)) == ["LayerNorm"] * 2 + ["Linear"] * 5 + ["Pool"] * 2
    assert_same(model, rewritten, precision)


@pytest.mark.parametrize(("mode", "normalize"), [("mean", 0), ("first", 1), ("each", 0)])
def test_norms_that_are_pooled_otherwise_stay(mode: str, normalize: int) -> None:
    p = PackedGraph()
    norm = p.norm(p.linear("x"), "x")
    offsets = p.initializer(range(TOKENS + 1) if mode == "each" else [0, 2, TOKENS], "int32")
    pooled = pool(p, norm, offsets, mode, normalize)
    rewritten, result = fold(p.model(pooled, p.linear(norm)))
    assert result.replaced == 0
    assert "is read by 'rows" in result.missed[0].reason
    assert operators(rewritten) == ["Linear", "LayerNorm", "Pool", "Linear"]


def test_a_norm_of_whose_result_rows_alone_are_taken_stays() -> None:
    p = PackedGraph()
    norm = p.norm(p.linear("x"), "x")
    pooled = pool(p, norm, p.initializer([0, TOKENS], "int32"), "first")
    _, result = fold(p.model(pooled))
    assert result.replaced == 0
    assert "(PadfreePool), which cannot apply it" in result.missed[0].reason


def test_a_norm_ahead_that_something_else_needs_stays_with_its_sum() -> None:
    p = PackedGraph()
    norm = p.norm("x", p.linear("x"), sum_output=True)
    model = p.model(p.op("Relu", norm), p.linear(p.linear(norm), residual=f"{norm}_total"))
    rewritten, result = fold(model)
    assert result.replaced == 0
    assert operators(rewritten) == operators(model)
    assert_same(model, rewritten)


def test_the_last_norm_ahead_of_a_head_leaves_its_sum_to_the_gemm() -> None:
    """The last GEMM adds the folded norm's result; its sum is an output."""
    p = PackedGraph()
    hidden = p.norm(p.linear("x"), "x")
    last = p.norm(hidden, p.linear(p.linear(hidden)), sum_output=True)
    model = p.model(last, f"{last}_total")
    rewritten, result = fold(model)
    assert (result.replaced, operators(rewritten)) == (1, ["Linear", "Linear", "Linear", "LayerNorm"])
    assert [list(node.output) for node in rewritten.graph.node][2:] == [[f"{last}_total"], [last]]
    assert_same(model, rewritten)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_norms_between_gemms_go(precision: str) -> None:
    p = PackedGraph(precision)
    model = p.model(encoder(p, "x"))
    rewritten, result = fold(model, precision)
    assert result == PassResult("norm folding", 2)
    assert operators(rewritten) == ["Linear"] * 4
    assert flags(rewritten) == [
        {"bias", "residual", "moments"},
        {"bias", "x_moments"},
        {"bias", "residual", "residual_moments", "moments"},
        {"bias", "x_moments"},
    ]
    assert_same(model, rewritten, precision)


def test_the_last_norm_of_a_network_leaves_its_sum_to_the_gemm() -> None:
    """Otherwise the norm before it, its residual, could not be folded."""
    p = PackedGraph()
    hidden = p.norm(p.linear("x"), "x", beta=False)
    last = p.norm(p.linear(p.linear(hidden)), hidden, bias=p.constant(WIDTH))
    model = p.model(last)
    rewritten, result = fold(model)
    assert result.replaced == 1
    assert [miss.reason for miss in result.missed] == [f"'{last}' makes the output '{last}'"]
    assert operators(rewritten) == ["Linear", "Linear", "Linear", "LayerNorm"]
    # z, gamma and beta. A tensor with another sum has another name: names tell where tensors come from.
    assert rewritten.graph.node[-1].input[0] == "linear3_sum"
    assert len(rewritten.graph.node[-1].input) == 3
    assert [node.output[0] for node in rewritten.graph.node] == ["linear0_sum", "linear2", "linear3_sum", last]
    assert_same(model, rewritten)


def test_a_norm_keeps_a_residual_whose_norm_stays() -> None:
    p = PackedGraph()
    hidden = p.norm(p.linear("x"), "x")
    last = p.norm(p.linear(hidden), "x")
    model = p.model(last)
    rewritten, result = fold(model)
    assert result.replaced == 1
    assert [len(node.input) for node in rewritten.graph.node if node.op_type == "PadfreeLayerNorm"] == [4]
    assert flags(rewritten)[-1] == {"bias", "x_moments"}
    assert_same(model, rewritten)


def test_a_gemm_norms_what_it_multiplies_or_what_it_adds() -> None:
    p = PackedGraph()
    first = p.norm(p.linear("x"), "x")
    second = p.norm(p.linear("x"), beta=False)
    model = p.model(p.linear(first, residual=second), p.linear(second, bias=""))
    rewritten, result = fold(model)
    assert (result.replaced, operators(rewritten)) == (1, ["Linear", "LayerNorm", *["Linear"] * 3])
    assert "would norm what it multiplies and what it adds" in result.missed[0].reason
    assert sorted(map(sorted, flags(rewritten)))[-2:] == [["bias", "residual", "residual_moments"], ["x_moments"]]
    assert_same(model, rewritten)


def test_what_the_norm_adds_may_be_nothing_or_a_bias() -> None:
    p = PackedGraph()
    plain = p.norm(p.linear("x"))
    biased = p.norm(p.linear("x", bias=""), bias=p.constant(WIDTH))
    twice = p.norm(p.linear("x"), "x", bias=p.constant(WIDTH))
    model = p.model(*(p.linear(item, bias="") for item in (plain, biased, twice)))
    rewritten, result = fold(model)
    assert (result.replaced, operators(rewritten)) == (3, ["Linear"] * 6)
    assert [item for item in flags(rewritten) if "x_moments" in item] == [{"bias", "x_moments"}] * 3  # made of beta
    assert_same(model, rewritten)


def test_shared_weights_are_not_changed_for_others() -> None:
    p = PackedGraph()
    weight, bias = p.constant(WIDTH, WIDTH, scale=0.1), p.constant(WIDTH)
    first, second = (p.norm(p.linear("x")) for _ in range(2))
    readers = [p.linear(item, weight=weight, bias=bias) for item in (first, first, second, "x")]
    model = p.model(*readers)
    rewritten, result = fold(model)
    assert result.replaced == 2
    weights = {node.name: node.input[1] for node in rewritten.graph.node}
    assert [weights[name] == weight for name in readers] == [False, False, False, True]
    assert weights[readers[0]] == weights[readers[1]] != weights[readers[2]]
    assert_same(model, rewritten)


def graph_output(p: PackedGraph) -> list[str]:
    norm = p.norm(p.linear("x"), "x")
    return [p.linear(norm), norm]


def other_reader(p: PackedGraph) -> list[str]:
    norm = p.norm(p.linear("x"), "x")
    return [p.linear(norm), p.op("Relu", norm)]


def odd_width(p: PackedGraph) -> list[str]:
    return [p.linear(p.norm(p.linear("x", columns=72), width=72), rows=72)]


def great_width(p: PackedGraph) -> list[str]:
    return [p.linear(p.norm(p.linear("x", columns=4160), width=4160), rows=4160)]


def after_an_activation(p: PackedGraph) -> list[str]:
    norm = p.norm(p.linear("x"))
    return [p.linear("x", activation="gelu", residual=norm)]


def sum_after_an_activation(p: PackedGraph) -> list[str]:
    return [p.linear(p.norm(p.linear("x", activation="gelu"), "x"))]


def gates(p: PackedGraph) -> list[str]:
    return [p.linear(p.norm(p.linear("x", columns=2 * WIDTH, activation="silu", gated=True)))]


def second_residual(p: PackedGraph) -> list[str]:
    return [p.linear(p.norm(p.linear("x", residual="x"), "x"))]


def sum_of_a_linear_that_is_needed(p: PackedGraph) -> list[str]:
    result = p.linear("x")
    return [p.linear(p.norm(result, "x")), p.op("Relu", result)]


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (graph_output, "'norm1' makes the output 'norm1'"),
        (other_reader, "'norm1' is read by 'relu3' (Relu), which cannot apply it"),
        (odd_width, "'norm1' is 72 wide, which is no multiple of 64"),
        (great_width, "'norm1' is 4160 wide; at most 4096 are folded"),
        (after_an_activation, "'norm1' is added after the activation of 'linear2'"),
        (sum_after_an_activation, "'norm1' norms what 'linear0' makes by an activation"),
        (gates, "'norm1' norms what 'linear0' makes by a gate or a rotation"),
        (second_residual, "'norm1' adds to what 'linear0' has added a residual to"),
        (sum_of_a_linear_that_is_needed, "'norm1' adds to 'linear0', which something else needs too"),
    ],
)
def test_what_stays(write: Any, reason: str) -> None:
    p = PackedGraph()
    model = p.model(*write(p))
    rewritten, result = fold(model)
    assert result.replaced == 0
    assert [(miss.node, miss.reason) for miss in result.missed] == [("norm1", reason)]
    assert operators(rewritten) == operators(model)
    assert [list(node.input) for node in rewritten.graph.node] == [list(node.input) for node in model.graph.node]


def test_a_scaled_weight_that_fp16_cannot_hold() -> None:
    """The norm stays, but the one before it is folded."""
    p = PackedGraph("fp16")
    first = p.norm(p.linear("x"), "x")
    gamma = np.ones(WIDTH)
    gamma[3] = 1000
    weight = np.full((WIDTH, WIDTH), 0.01)
    weight[3, 0] = 100
    second = p.norm(p.linear(p.linear(first)), first, gamma=p.initializer(gamma))
    model = p.model(p.linear(second, weight=p.initializer(weight)))
    rewritten, result = fold(model, "fp16")
    assert result.replaced == 1
    (miss,) = result.missed
    assert miss.node == second
    assert "holds 9.84e+04, fp16 holds at most 65504" in miss.reason  # 1e5 minus the mean of its column
    assert operators(rewritten) == ["Linear", "Linear", "Linear", "LayerNorm", "Linear"]


def test_a_bias_that_fp16_cannot_hold() -> None:
    """Each bias fits, but the weights multiply the norm's beta beyond that."""
    p = PackedGraph("fp16")
    norm = p.norm(p.linear("x"))
    model = p.model(
        p.linear(norm, weight=p.initializer(np.full((WIDTH, WIDTH), 2.0)), bias=p.initializer(np.full(WIDTH, 65504)))
    )
    beta = next(item for item in model.graph.initializer if item.name == model.graph.node[1].input[2])
    beta.CopyFrom(numpy_helper.from_array(np.full(WIDTH, 10, np.float16), beta.name))
    rewritten, result = fold(model, "fp16")
    assert result.replaced == 0
    assert "would hold numbers that fp16 cannot hold" in result.missed[0].reason
    assert operators(rewritten) == operators(model)


def bert() -> ModelProto:
    return bert_model(num_layers=2, hidden_size=64, num_heads=4, intermediate_size=128, vocab_size=50, max_positions=24)


FOLDED_LAYERS = [
    *["PadfreeSchedule", "PadfreeEmbedding"],
    *["PadfreeLinear", "PadfreeAttention", "PadfreeLinear", "PadfreeLinear", "PadfreeLinear"] * 2,
    "PadfreeLayerNorm",
]


def test_bert_keeps_its_last_norm() -> None:
    original = bert()
    plain = rewrite(original, verify=False)
    rewritten = with_linear(plain.model)
    assert [node.op_type for node in rewritten.graph.node if node.domain == DOMAIN] == [*FOLDED_LAYERS, "PadfreePool"]
    assert_agree(original, RewriteResult(rewritten, plain.report))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_bert_in_half_precision(precision: str) -> None:
    plain = rewrite(bert(), precision=precision, verify=False).model
    separate, rewritten = with_linear(plain, fold_norms=False), with_linear(plain)
    assert [node.op_type for node in rewritten.graph.node if node.domain == DOMAIN] == [*FOLDED_LAYERS, "PadfreePool"]
    half = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16
    kinds = {item.name: item.data_type for item in rewritten.graph.initializer}
    for node in rewritten.graph.node:
        if node.op_type == "PadfreeLinear":
            constants = [kinds[name] for name in node.input if name in kinds]
            assert set(constants) <= {half, TensorProto.FLOAT}
            assert constants.count(TensorProto.FLOAT) == 0
    check_element_types(rewritten, precision)
    if precision == "fp16":  # onnxruntime has no bf16
        rng = np.random.default_rng(5)
        inputs = {"input_ids": rng.integers(0, 50, 17), "token_type_ids": np.zeros(17), "seq_lens": np.array([9, 0, 8])}
        feeds = {item.name: inputs[item.name].astype(np.int32) for item in plain.graph.input}
        for wanted, actual in zip(run(separate, feeds), run(rewritten, feeds), strict=True):
            np.testing.assert_allclose(actual, wanted, **FP16)


def test_bf16_constants_are_rounded_once() -> None:
    """Gamma times weight minus the mean of each column, whose sum stays 0 up to a few roundings."""
    plain = rewrite(bert(), precision="bf16", verify=False).model
    separate, rewritten = with_linear(plain, fold_norms=False), with_linear(plain)
    values = {item.name: item for model in (separate, rewritten) for item in model.graph.initializer}
    floats = {name: numpy_helper.to_array(item).astype(np.float64) for name, item in values.items()}
    reader = next(node for node in rewritten.graph.node if node.input[1:] and node.input[1].endswith("_scaled"))
    before = next(node for node in separate.graph.node if node.name == reader.name)
    norm = next(node for node in separate.graph.node if before.input[0] in node.output)
    gamma = floats[norm.input[-2]]
    scaled = floats[reader.input[1]]
    whole = gamma[:, None] * floats[before.input[1]]
    exact = whole - whole.mean(0)
    step = 2.0 ** (np.floor(np.log2(np.abs(exact) + 1e-300)) - 7)
    nearest = to_float32(round_to(exact.astype(np.float32), "bf16"))
    assert (np.abs(scaled - exact) <= step * 0.75).all()
    assert np.linalg.norm(scaled.sum(0)) < np.linalg.norm(nearest.sum(0))
    shifted = floats[before.input[2]] + floats[norm.input[-1]] @ floats[before.input[1]]
    np.testing.assert_allclose(floats[reader.input[2]], shifted, rtol=2.0**-8)


def metadata(model: ModelProto) -> dict[str, Any]:
    return dict(json.loads(next(item.value for item in model.metadata_props if item.key == "padfree")))


def test_the_metadata_tell_what_was_folded() -> None:
    plain = rewrite(bert(), verify=False).model
    separate, rewritten = (metadata(with_linear(plain, fold_norms=fold)) for fold in (False, True))
    assert [item["name"] for item in separate["coverage"]["passes"]][-1] == "linear"
    *_, last = rewritten["coverage"]["passes"]
    assert (last["name"], last["replaced"]) == ("norm folding", 3)
    assert [miss["reason"] for miss in last["missed"]] == ["'PadfreeLayerNorm_3' makes the output 'last_hidden_state'"]
    assert rewritten["plugins"] == {**separate["plugins"], "PadfreeLayerNorm": 1}
    assert rewritten["coverage"]["products"] == separate["coverage"]["products"]
    tensors = {name for node in with_linear(plain).graph.node for name in node.output}
    assert set(rewritten["origins"]) <= tensors
    assert not [name for name in rewritten["origins"] if name.endswith(("_sum", "_moments"))]
