# SPDX-License-Identifier: Apache-2.0
"""Models in int8: factors of columns, which nodes write and read int8, and how near the answers are."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.analysis import padfree_inputs
from padfree.onnx_tools.eight_bits import QUANTIZATION, quantize, quantize_gemms
from padfree.onnx_tools.files.metadata import read_metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.graph_model import GraphModel
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.operators import node_attributes, padfree_nodes
from padfree.onnx_tools.passes.norms.folded_weights import values_of
from padfree.onnx_tools.quantization import FORMATS, QuantizationOptions
from padfree.onnx_tools.quantization.effect import Effect
from padfree.onnx_tools.quantization.int8 import (
    LARGEST,
    activation_scale,
    equal_cost_factors,
    floored_factors,
    narrow,
    quantized_rows,
)
from padfree.onnx_tools.quantization.layers import choose_layers
from padfree.onnx_tools.quantization.losses import ExactResult
from padfree.onnx_tools.quantization.narrowing import narrow_gemms
from padfree.onnx_tools.quantization.scales import TensorScale
from padfree.onnx_tools.quantization.weights import QuantizedWeight, QuantizedWeights
from padfree.onnx_tools.rewrite import finish
from padfree.onnx_tools.synthetic import bert_model

from tests.onnx_tools.agreement import run

VOCABULARY, WIDTH, INNER = 100, 64, 128
OUTLIER, SIZE = 5, 60.0
OPTIONS = QuantizationOptions(number_format=FORMATS["int8"])


def batch(*lengths: int, seed: int = 0) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, sum(lengths)).astype(np.int32)
    return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "seq_lens": np.asarray(lengths, np.int32)}


BATCHES = (batch(20, 5, 33), batch(64, 3, seed=1))


@pytest.fixture(scope="module")
def half() -> Model:
    original = bert_model(2, WIDTH, 2, INNER, VOCABULARY, 64)
    return with_linear(Model.of(rewrite(original, precision="fp16", verify=False).model), fold_streams=False)


@pytest.fixture(scope="module")
def made(half: Model) -> Model:
    return quantize(half, BATCHES, OPTIONS)


def describe(model: Model) -> dict[str, Any]:
    return dict(read_metadata(model.proto)[QUANTIZATION])


def linears(model: Model) -> list[onnx.NodeProto]:
    return [node for node in padfree_nodes(model.proto.graph) if node.op_type == "PadfreeLinearInt8"]


def test_gemms_hand_int8_to_each_other(made: Model) -> None:
    """Other operators' results go through QuantizeLinear."""
    nodes = {name: node for node in made.proto.graph.node for name in node.output}
    makers = [nodes[node.input[0]].op_type for node in linears(made)]
    layer = ["QuantizeLinear", "QuantizeLinear", "PadfreeLinearInt8", "PadfreeLinearInt8"]
    assert makers == [*layer, "PadfreeLinearInt8", *layer[1:]]
    results = [node_attributes(node)["results"] for node in linears(made)]
    assert results == ["act", "both", "int8", "both", "act", "both", "int8", "act"]
    assert describe(made)["type"] == "int8"
    assert not describe(made)["kept"]


def test_it_computes_nearly_the_same(half: Model, made: Model) -> None:
    (wanted, actual) = (run(finish(model, "fp16"), BATCHES[1])[0] for model in (half, made))
    ends = np.cumsum(BATCHES[1]["seq_lens"])
    for end, length in zip(ends, BATCHES[1]["seq_lens"], strict=True):
        a, b = (rows[end - length : end].astype(np.float64).ravel() for rows in (wanted, actual))
        assert 0.999 < a @ b / np.linalg.norm(a) / np.linalg.norm(b) < 1 - 1e-7
    assert all(0 < layer["loss"] < 0.03 for layer in describe(made)["layers"])


def test_answers_depend_on_the_factors(made: Model) -> None:
    """Results that a GEMM stores in int8 have a factor of each column."""
    before = run(finish(made, "fp16"), BATCHES[0])[0]
    changed = made.whole()
    names = {node.input[-1] for node in linears(made) if node_attributes(node)["results"] == "int8"}
    for item in changed.graph.initializer:
        if item.name in names:
            item.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(item) * 2, item.name))
    assert len(names) == 2
    after = run(finish(Model(changed), "fp16"), BATCHES[0])[0]
    assert np.abs(after - before).max() > 0.1 * np.abs(before).max()


def outlying_rows() -> tuple[np.ndarray, np.ndarray]:
    """x [50,32] with one large column, and a weight [32,16]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 32)).astype(np.float32)
    x[:, OUTLIER] *= SIZE
    return x, rng.standard_normal((32, 16)).astype(np.float32)


def error_with(factors: np.ndarray, x: np.ndarray, weight: np.ndarray) -> float:
    """The relative error of a product in int8."""
    scale = np.float32(activation_scale(float((np.abs(x).max(axis=0) / factors).max()), 1.0))
    rows, of_rows = quantized_rows((weight * factors[:, None]).T)
    numbers = narrow(x / factors / scale).astype(np.int64) @ rows.astype(np.int64).T
    return float(np.linalg.norm(numbers * scale * of_rows - x @ weight) / np.linalg.norm(x @ weight))


def test_factors_move_an_outlier_into_the_weights() -> None:
    x, weight = outlying_rows()
    columns = np.abs(x).max(axis=0)
    factors = floored_factors(columns, np.full(32, columns.max() / 8, np.float32))
    assert factors[OUTLIER] > 5 * np.delete(factors, OUTLIER).max()
    np.testing.assert_allclose((columns / factors).max(), columns.max(), rtol=2.0**-8)  # nothing overflows
    for type_ in (np.float16, np.float32):
        np.testing.assert_allclose((1 / factors).astype(type_).astype(np.float32), 1 / factors, rtol=1e-6)
    assert error_with(factors, x, weight) < 0.7 * error_with(np.ones(32, np.float32), x, weight)


def test_floors_follow_what_a_step_costs() -> None:
    """Columns that differ little, or meet large weights, have small steps."""
    factors = equal_cost_factors(np.array([1, 4, 1, 1], np.float32), np.array([1, 1, 4, 1], np.float32))
    np.testing.assert_allclose(factors, [1, 2, 0.5, 1])
    nothing = np.zeros(4, np.float32)
    of_zeros = floored_factors(nothing, equal_cost_factors(nothing, nothing))
    assert np.isfinite(of_zeros).all()
    assert (of_zeros > 0).all()


def test_biases_take_mean_errors_away(half: Model) -> None:
    """Without it, the same weights leave an error that is the same for every token."""
    graph = GraphModel.of(half)
    layer = choose_layers(graph.graph, OPTIONS).chosen_layers[0]
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((32, 16)).astype(np.float32)
    x = (0.45 * rng.random((200, 32))).astype(np.float32)  # below half a step
    scale = TensorScale(1.0)
    quantized = QuantizedWeights(OPTIONS.number_format).quantize(weight, scale)
    corrected, plain = (
        ExactResult(layer.node, x, weight).loss(
            scale, quantized, replace(OPTIONS.number_format, corrects_bias=corrects)
        )
        for corrects in (True, False)
    )
    assert plain.shift is None
    assert corrected.shift is not None
    assert corrected.shift.shape == (16,)
    assert corrected.per_token < 0.7 * plain.per_token
    assert not error_left(corrected.shift, x, weight, quantized)


def error_left(shift: np.ndarray, x: np.ndarray, weight: np.ndarray, quantized: QuantizedWeight) -> bool:
    """Whether rows, weighted by the inverse squares of their lengths, keep a mean error beside the shift."""
    exact = x @ weight
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    shares = 1 / np.square(np.maximum(lengths, 0.1 * np.median(lengths)))
    mean = (shares * (np.rint(x) @ quantized.dequantize().T - exact)).sum(axis=0) / shares.sum()
    return not np.allclose(shift, mean, atol=1e-4)


def test_narrowed_gemms_have_corrected_biases(half: Model) -> None:
    """A shift is subtracted from the bias of its GEMM alone."""
    graph = GraphModel.of(half)
    layers = choose_layers(graph.graph, OPTIONS).chosen_layers
    before = {layer.name: values_of(padfree_inputs(layer.node)["bias"]) for layer in layers}
    shift = np.linspace(-1, 1, len(before[layers[0].name])).astype(np.float32)
    scales = {layer.x: TensorScale(0.1) for layer in layers}
    weights = QuantizedWeights(OPTIONS.number_format)
    narrow_gemms(graph.graph, "fp16", layers, scales, weights, OPTIONS.number_format, {layers[0].name: shift})
    for layer in layers:
        taken = shift if layer is layers[0] else 0
        after = values_of(padfree_inputs(layer.node)["bias"])
        np.testing.assert_allclose(after, before[layer.name] - taken, atol=2e-3)


def test_rounding() -> None:
    values = np.array([0.5, 1.5, -2.5, 126.6, 500, -500, np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(narrow(values), [0, 2, -2, 127, 127, -128, 0, 127])
    rows, scale = quantized_rows(np.array([[3, -6], [0, 0]], np.float32))
    np.testing.assert_array_equal(rows, [[64, -127], [0, 0]])
    np.testing.assert_allclose(scale, [6 / LARGEST, 1])


def test_margin(half: Model, made: Model) -> None:
    wide = quantize(half, BATCHES, QuantizationOptions(4.0, number_format=FORMATS["int8"]), verify=False)
    for one, other in zip(describe(made)["layers"], describe(wide)["layers"], strict=True):
        if one.get("smoothing") == other.get("smoothing"):
            assert other["scale"] == pytest.approx(one["scale"] * 4 / 1.25, rel=2e-3)
    assert describe(wide)["margin"] == 4.0


def test_a_quantised_model_is_refused(made: Model) -> None:
    with pytest.raises(RewriteError, match="the model is quantised already"):
        quantize(made, BATCHES, OPTIONS)


@pytest.mark.parametrize(("cosine", "warns"), [(0.985, True), (0.995, False)])
def test_a_cosine_below_those_of_good_models_is_named(
    half: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cosine: float, warns: bool
) -> None:
    monkeypatch.setattr("padfree.onnx_tools.eight_bits.measure_effect", lambda *_: {"out": Effect(cosine, 0.9, 3)})
    with caplog.at_level(logging.WARNING, "padfree"):
        quantize(half, BATCHES, OPTIONS)
    assert ("in int8 the cosine of output 'out'" in caplog.text) is warns


@pytest.mark.parametrize(
    ("precision", "most", "are_folded"), [("int8", 0.06, True), ("int8", 1e-6, False), ("fp8", 0.0, True)]
)
def test_norms_stay_operators_where_folding_loses_much(
    monkeypatch: pytest.MonkeyPatch, precision: str, most: float, are_folded: bool
) -> None:
    """Rows of different lengths share a scale where a GEMM folds the norm; e4m3 has enough exponents for them."""
    monkeypatch.setattr("padfree.onnx_tools.eight_bits.LARGEST_NORM_LOSS", most)
    source = Model.of(rewrite(bert_model(1, WIDTH, 2, INNER, VOCABULARY, 64), precision="fp16", verify=False).model)
    made = quantize_gemms(source, BATCHES, QuantizationOptions(number_format=FORMATS[precision]), verify=False)
    nodes = [node for node in padfree_nodes(made.proto.graph) if node.op_type.startswith("PadfreeLinear")]
    assert any(node_attributes(node)["has_x_moments"] for node in nodes) is are_folded
