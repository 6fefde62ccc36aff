# SPDX-License-Identifier: Apache-2.0
"""fp16 without surprises: what overflows or vanishes is found and stays float32, and the result is tried out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import GraphModel, RewriteError, VerificationError, rewrite
from padfree.onnx_tools.analysis.graph import Editor, remove_nodes
from padfree.onnx_tools.files.graph_io import export_model
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.operators import with_functions
from padfree.onnx_tools.precision.norm_nodes import add_standard_norm
from padfree.onnx_tools.precision.ranges import FP16_LOSS, unfit_reason
from padfree.onnx_tools.synthetic import bert_model
from padfree.onnx_tools.verification.sample_batches import sample_of

from tests.support.encoder import HIDDEN, one_layer
from tests.support.messages import check_outputs, convert, run, with_linear
from tests.support.samples import PLAIN_NORM

E, T = 8, 5


def scale(**factors: float) -> ModelProto:
    """A BERT of two layers, with weights of layer 1 multiplied by factors (__ in names stands for a dot)."""
    model = bert_model(2, 32, 4, 64, vocab_size=60, max_positions=48)
    for key, factor in factors.items():
        name = f"encoder.layer.1.{key.replace('__', '.')}"
        weight = next(item for item in model.graph.initializer if item.name == name)
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), name))
    return model


def metadata_of(model: ModelProto) -> dict[str, object]:
    return dict(json.loads(next(item.value for item in model.metadata_props if item.key == "padfree")))


def test_nothing_stays_float32_without_need() -> None:
    assert metadata_of(rewrite(scale(), precision="fp16").model)["kept_float32"] == {}


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_activations_that_overflow_stay_float32(interface: str) -> None:
    model = scale(intermediate__dense__MatMul=3e4, output__dense__MatMul=1 / 3e4)
    result = rewrite(model, precision="fp16", interface=interface).model  # rewrite checks its outputs
    kept = metadata_of(result)["kept_float32"]
    assert isinstance(kept, dict)
    assert any("fp16 holds at most 65504" in reason for reason in kept.values())
    types = {value.name: value.type.tensor_type.elem_type for value in result.graph.value_info}
    assert all(types[name] == TensorProto.FLOAT for name in kept)
    gemms = [node for node in result.graph.node if node.op_type == "MatMul"]
    weights = {item.name: item.data_type for item in result.graph.initializer}
    held = [weights[node.input[1]] for node in gemms]
    assert held.count(TensorProto.FLOAT) == 2
    assert held.count(TensorProto.FLOAT16) == len(gemms) - 2


def with_norms_ahead(factor: float) -> ModelProto:
    """Two feed-forward layers with norms ahead, after an attention; `factor` scales what they add to the stream."""
    e, hidden = one_layer()
    for _ in range(2):
        inner = e.op("Relu", e.linear(e.norm(hidden), HIDDEN, 24))
        layer = e.op("MatMul", inner, e.constant(np.random.default_rng(1).standard_normal((24, HIDDEN)) * factor))
        hidden = e.op("Add", hidden, layer)
    e.op("Identity", e.norm(hidden), output="y")
    return e.model({"y": ["batch", "sequence", HIDDEN]})


def test_a_stream_beyond_fp16_makes_the_model_bf16() -> None:
    """Numbers around 1e5 that all layers add to: no GEMM loses its kernel."""
    result = rewrite(with_norms_ahead(3e4), precision="half").model
    metadata = metadata_of(result)
    assert (metadata["precision"], metadata["kept_float32"]) == ("bf16", {})
    assert "e+05, fp16 holds at most 65504" in str(metadata["bf16_because"])
    gemms = [node.op_type for node in with_linear(result).graph.node]
    assert (gemms.count("PadfreeLinear"), gemms.count("MatMul")) == (6, 0)


def test_fp16_that_is_asked_for_keeps_the_stream_in_float32() -> None:
    result = rewrite(with_norms_ahead(3e4), precision="fp16").model
    assert metadata_of(result)["kept_float32"]
    assert [node.op_type for node in with_linear(result).graph.node].count("MatMul") == 2


@pytest.mark.parametrize("lengths", [(3, 4), (0, 3, 0, 4, 0)])
@pytest.mark.parametrize("normed", [True, False])
def test_first_tokens_of_a_stream_beyond_fp16_stay_float32(lengths: tuple[int, ...], normed: bool) -> None:
    """Standard operators take what the last layer adds to and its result; rows of empty sequences are zeros."""
    e, hidden = one_layer()
    inner = e.op("MatMul", e.norm(hidden), e.constant(np.random.default_rng(1).standard_normal((HIDDEN, HIDDEN)) * 3e4))
    stream = e.op("Add", hidden, inner)
    last = e.op("Add", stream, e.attention(e.norm(stream), e.padding_mask()))
    e.op("Gather", e.norm(last) if normed else last, e.constant(0, np.int64), axis=1, output="y")
    model = e.model({"y": ["batch", HIDDEN]})
    wide, narrow = (rewrite(model, precision=precision) for precision in ("fp32", "fp16"))
    assert (wide.report.plugins["PadfreePool"], narrow.report.plugins["PadfreePool"]) == (3, 3)
    nodes = [node.op_type for node in narrow.model.graph.node]
    assert (nodes.count("PadfreePool"), nodes.count("Gather")) == (1 + normed, 1)
    ids = np.arange(7, dtype=np.int32)
    feeds = {"input_ids": ids, "seq_lens": np.asarray(lengths, np.int32)}
    (wanted,), (actual,) = (run(result.model, feeds, ["y"]) for result in (wide, narrow))
    np.testing.assert_allclose(actual, wanted, rtol=2e-2, atol=2e-2 * max(1.0, float(np.abs(wanted).max())))
    assert (actual[np.asarray(lengths) == 0] == 0).all()


def test_half_is_fp16_where_that_costs_nothing() -> None:
    metadata = metadata_of(rewrite(with_norms_ahead(1.0), precision="half").model)
    assert (metadata["precision"], metadata["kept_float32"]) == ("fp16", {})
    assert "bf16_because" not in metadata
    assert metadata_of(rewrite(with_norms_ahead(3e4), precision="half", verify=False).model)["precision"] == "fp16"


def test_norms_of_large_sums_stay_float32() -> None:
    model = scale(output__dense__MatMul=3e4)
    result = rewrite(model, precision="fp16").model
    assert [node.op_type for node in result.graph.node].count("LayerNormalization") == 1


def test_what_cannot_stay_float32_is_refused_by_name() -> None:
    model = scale(attention__self__value__MatMul=3e4)
    with pytest.raises(
        RewriteError, match=r"of PadfreeAttention 'PadfreeAttention_1' holds .*e\+0.*choose precision bf16"
    ):
        rewrite(model, precision="fp16")
    rewrite(model, precision="bf16")


def test_results_that_are_not_finite_are_refused() -> None:
    model = scale(intermediate__dense__MatMul=3e4, output__dense__bias=2.0)
    rewritten = rewrite(model, verify=False).model
    sample = sample_of(model, metadata_of(rewritten))
    with pytest.raises(VerificationError, match=r"'last_hidden_state' has .* numbers that are not finite"):
        check_outputs(rewritten, convert(rewritten, "fp16"), "fp16", sample)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, -2.0], ""),
        ([7e4], "holds 7e+04, fp16 holds at most 65504"),
        ([2e4], "holds 2e+04, fp16 holds at most 65504"),  # samples are few: numbers four times larger must fit, too
        ([1e-9, 2e-9], "holds numbers up to 2e-09, of which fp16 loses 1e+02 %"),
        ([1e-9, 1.0], ""),  # a number that is small compared with others may vanish
        ([-np.inf, 1.0], ""),  # a mask's infinity is intentional
        ([], ""),
    ],
)
def test_what_fits(values: list[float], reason: str) -> None:
    array = np.asarray(values, np.float32)
    assert unfit_reason(array, "fp16", headroom=4.0) == reason
    assert unfit_reason(array, "bf16", headroom=4.0) == ""


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize(
    "flags", ["has_beta", "rms", "rms has_beta has_bias", "has_bias has_residual has_sum", "has_residual", "has_sum"]
)
def test_norms_as_standard_operators(opset: int, flags: str) -> None:
    chosen = flags.split()
    names = ["rms", "has_bias", "has_residual", "has_beta", "has_sum"]
    inputs = ["x", *(name[4:] for name in names[1:3] if name in chosen), "gamma", *(["beta"] * ("has_beta" in chosen))]
    outputs = ["y", *(["sum"] * ("has_sum" in chosen))]
    attributes = {**PLAIN_NORM, **{name: int(name in chosen) for name in names}}
    node = helper.make_node("PadfreeLayerNorm", inputs, outputs, name="norm", domain="padfree", **attributes)
    shapes = {"x": [T, E], "residual": [T, E]}
    graph = helper.make_graph(
        [node],
        "norm",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes.get(name, [E])) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [T, E]) for name in outputs],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("padfree", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shapes.get(name, [E])).astype(np.float32) * 300 for name in inputs}
    plain = GraphModel.of(Model(model)).graph
    add_standard_norm(Editor(plain), plain.nodes[0])
    remove_nodes(plain, plain.nodes[:1])
    standard = export_model(plain, Model(model)).whole()
    for wanted, actual in zip(run(with_functions(model), feeds, outputs), run(standard, feeds, outputs), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-7, 3e-6, 1e-5, 3e-5, 5e-5, 1e-4, 1e-2, 1.0, 300.0])
@pytest.mark.parametrize("special", [None, np.inf, np.nan])
def test_what_surely_fits_loses_little(scale: float, special: float | None) -> None:
    """The shortcut by the mean square accepts a tensor only if numpy's own rounding agrees."""
    rng = np.random.default_rng(7)
    values = (scale * rng.standard_normal(200_000) * rng.choice([1e-4, 1e-2, 1.0], 200_000)).astype(np.float32)
    if special is not None:
        values[1000] = special
    finite = values[np.isfinite(values)].astype(np.float64)
    lost = np.linalg.norm(finite - finite.astype(np.float16)) / np.linalg.norm(finite)
    assert (unfit_reason(values, "fp16") == "") == (lost <= FP16_LOSS)
