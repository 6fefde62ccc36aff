# SPDX-License-Identifier: Apache-2.0
"""Models in fp8: which nodes write and read e4m3, whether constants are right, what stays and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.eight_bits import OPSET, QUANTIZATION, quantize, quantize_gemms
from padfree.onnx_tools.errors import VerificationError
from padfree.onnx_tools.files.graph_io import import_graph
from padfree.onnx_tools.files.metadata import read_metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.operators import node_attributes, opset_of, padfree_nodes
from padfree.onnx_tools.quantization.e4m3 import LARGEST
from padfree.onnx_tools.quantization.effect import Effect
from padfree.onnx_tools.quantization.formats import E4M3, FORMATS
from padfree.onnx_tools.quantization.options import LARGEST_LOSS, LARGEST_STREAM_LOSS, QuantizationOptions
from padfree.onnx_tools.quantization.scales import check_scales
from padfree.onnx_tools.quantization.selection import LEAST_COSINE
from padfree.onnx_tools.rewrite import finish
from padfree.onnx_tools.synthetic import bert_model
from padfree.onnx_tools.verification.sample_batches import sample_of

from tests.onnx_tools.agreement import run
from tests.support import folding_encoders
from tests.support.rewritings import Rewritings

VOCABULARY, WIDTH, INNER = 100, 64, 128
Feeds = dict[str, np.ndarray]


def batch(*lengths: int, seed: int = 0) -> Feeds:
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, sum(lengths)).astype(np.int32)
    return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "seq_lens": np.asarray(lengths, np.int32)}


BATCHES = (batch(20, 5, 33), batch(64, 3, seed=1))


@pytest.fixture(scope="module")
def original() -> ModelProto:
    return bert_model(2, WIDTH, 2, INNER, VOCABULARY, 64)


@pytest.fixture(scope="module")
def half(original: ModelProto) -> Model:
    """The model in fp16, with padfree's products and with norms folded."""
    return with_linear(Model.of(rewrite(original, precision="fp16", verify=False).model), fold_streams=False)


@pytest.fixture(scope="module")
def made(half: Model) -> Model:
    return quantize(half, BATCHES)


def describe(model: Model) -> dict[str, Any]:
    return dict(read_metadata(model.proto)[QUANTIZATION])


def values(model: Model) -> dict[str, np.ndarray]:
    """Constants by name, e4m3 as float32."""
    whole = model.whole()
    return {item.name: numpy_helper.to_array(item) for item in whole.graph.initializer}


def fp8_linears(model: Model) -> list[tuple[onnx.NodeProto, Mapping[str, Any]]]:
    results = [node for node in padfree_nodes(model.proto.graph) if node.op_type == "PadfreeLinearFp8"]
    return [(node, node_attributes(node)) for node in results]


def test_gemms_hand_e4m3_to_each_other(made: Model) -> None:
    """The embedding outputs both types; attention and a feed-forward network's inside are in e4m3 only."""
    nodes = {name: node for node in made.proto.graph.node for name in node.output}
    makers = [nodes[node.input[0]].op_type for node, _ in fp8_linears(made)]
    layer = ["PadfreeEmbedding", "PadfreeAttention", "PadfreeLinearFp8", "PadfreeLinearFp8"]
    assert makers == [*layer, "PadfreeLinearFp8", *layer[1:]]
    results = [(attributes["results"], attributes["has_moments"]) for _, attributes in fp8_linears(made)]
    assert results == [
        ("act", 0),
        ("both", 1),
        ("e4m3", 0),
        ("both", 1),
        ("act", 0),
        ("both", 1),
        ("e4m3", 0),
        ("act", 0),
    ]
    assert node_attributes(nodes[fp8_linears(made)[0][0].input[0]])["results"] == "both"
    assert opset_of(made.proto) == OPSET
    assert not [node for node in made.proto.graph.node if node.op_type == "QuantizeLinear"]
    assert not [node for node in padfree_nodes(made.proto.graph) if node.op_type == "PadfreeLinear"]


def test_constants_are_the_weights(half: Model, made: Model) -> None:
    """The scale times the stored numbers gives the weights to 3 bits."""
    before, after = values(half), values(made)
    old = {node.name: node for node in padfree_nodes(half.proto.graph)}
    scales = {layer["name"]: layer["scale"] for layer in describe(made)["layers"]}
    for node, _ in fp8_linears(made):
        rows, scale = after[node.input[1]].astype(np.float64), after[node.input[2]].astype(np.float64)
        weight = before[old[node.name].input[1]].astype(np.float64).T
        own = scale / scales[node.name]  # the weight's own scale
        off = np.abs(rows * own[:, None] - weight)
        assert (off <= np.maximum(np.abs(weight) * 2.0**-4, own[:, None] * 2.0**-10) * 1.2).all()  # 1.2 to keep sums
        assert np.abs(rows).max() <= LARGEST


def test_scales_leave_room(half: Model, made: Model) -> None:
    layers = describe(made)["layers"]
    for layer in layers:
        assert LARGEST / 4 <= layer["largest"] / layer["scale"] <= LARGEST / 2, layer
    wide = {
        layer["name"]: layer["scale"] for layer in describe(quantize(half, BATCHES, QuantizationOptions(16)))["layers"]
    }
    assert {layer["name"]: 8 * layer["scale"] for layer in layers} == wide


def test_the_largest_number_of_all_batches_counts(half: Model) -> None:
    each = [{item["name"]: item["largest"] for item in describe(quantize(half, [one]))["layers"]} for one in BATCHES]
    both = {item["name"]: item["largest"] for item in describe(quantize(half, BATCHES))["layers"]}
    assert both == {name: max(one[name] for one in each) for name in both}
    assert each[0] != both


def test_it_computes_nearly_the_same(half: Model, made: Model) -> None:
    """The metadata also tells the truth: its cosines are those of the outputs."""
    (wanted, actual) = (run(finish(model, "fp16"), BATCHES[0]) for model in (half, made))
    ends = np.cumsum(BATCHES[0]["seq_lens"])
    cosines = []
    for end, length in zip(ends, BATCHES[0]["seq_lens"], strict=True):
        a, b = (rows[0][end - length : end].astype(np.float64).ravel() for rows in (wanted, actual))
        cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    said = describe(made)["outputs"]["last_hidden_state"]
    assert said["mean_cosine"] == pytest.approx(np.mean(cosines), abs=1e-6)
    assert said["least_cosine"] == pytest.approx(min(cosines), abs=1e-6)
    assert 0.99 < min(cosines) < 1 - 1e-5


def test_losses_are_those_of_three_bits(made: Model) -> None:
    """Two factors, each with evenly distributed errors of up to 2^-4 of itself: sqrt(2) * 0.026."""
    losses = [layer["loss"] for layer in describe(made)["layers"]]
    assert all(0.03 < loss < 0.045 for loss in losses), losses


def test_gemms_are_chosen_by_name(half: Model) -> None:
    names = [node.name for node in padfree_nodes(half.proto.graph) if node.op_type == "PadfreeLinear"]
    kept = describe(quantize(half, BATCHES, QuantizationOptions(keep=("qkv*",))))
    assert list(kept["kept"].items()) == [(name, "asked for") for name in names if name.startswith("qkv")]
    one = quantize(half, BATCHES, QuantizationOptions(quantize=(names[2],)))
    assert [layer["name"] for layer in describe(one)["layers"]] == [names[2]]
    assert set(describe(one)["kept"].values()) == {"not asked for"}
    assert [attributes["results"] for _, attributes in fp8_linears(one)] == ["act"]
    run(finish(one, "fp16"), BATCHES[0])


def test_gemms_that_lose_too_much_stay(half: Model, made: Model) -> None:
    losses = {layer["name"]: layer["loss"] for layer in describe(made)["layers"]}
    worst = max(losses, key=losses.__getitem__)
    limit = sorted(losses.values())[-2]
    actual = describe(quantize(half, BATCHES, QuantizationOptions(largest_loss=limit)))
    assert actual["kept"] == {worst: f"loses {losses[worst]:.3f} of its result, allowed is {limit:g}"}
    with pytest.raises(RewriteError, match=r"every GEMM loses too much in fp8, '.*' most: loses 0\.\d+ of"):
        quantize(half, BATCHES, QuantizationOptions(largest_loss=1e-3))


def test_answers_that_are_too_far_off_are_refused(
    half: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def measure(cosine: float) -> None:
        effects = {"last_hidden_state": Effect(cosine, 0.5, 3)}
        monkeypatch.setattr("padfree.onnx_tools.eight_bits.measure_effect", lambda *_: effects)

    measure(E4M3.usual_cosine - 1e-3)
    with caplog.at_level(logging.WARNING, "padfree"):
        quantize(half, BATCHES)
    assert "the cosine of output 'last_hidden_state'" in caplog.text
    measure(LEAST_COSINE - 1e-3)
    message = (
        r"the cosine of output 'last_hidden_state' .* is 0\.89\d+ on average over 3 sequences .* keep them with --keep"
    )
    with pytest.raises(VerificationError, match=message):
        quantize(half, BATCHES)
    assert quantize(half, BATCHES, verify=False).proto.graph.node
    assert all(LEAST_COSINE < number_format.usual_cosine <= 0.995 for number_format in FORMATS.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ("query*",)}, r"no GEMM is named 'query\*', the GEMMs are 'qkv"),
        ({"quantize": ("nothing",)}, "no GEMM is named 'nothing'"),
        ({"keep": ("*",)}, "no GEMM is left to be in fp8: asked for; change --keep and --quantize"),
    ],
)
def test_names_that_fit_nothing_are_refused(half: Model, options: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(RewriteError, match=message):
        quantize(half, BATCHES, QuantizationOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("margin", [0.5, 65.0, float("nan"), float("inf")])
def test_margins_have_bounds(margin: float) -> None:
    with pytest.raises(RewriteError, match=r"the margin is .*, allowed: 1 to 64; leave it out for 2"):
        QuantizationOptions(margin)
    with pytest.raises(RewriteError, match=f"allowed: a number above 0; leave it out for {LARGEST_LOSS:g}"):
        QuantizationOptions(largest_loss=-1.0)


def test_models_that_cannot_be_in_fp8(original: ModelProto, half: Model, made: Model) -> None:
    with pytest.raises(RewriteError, match="the model is quantised already"):
        quantize(made, BATCHES)
    with pytest.raises(RewriteError, match="no padfree metadata; rewrite it first"):
        quantize(Model(original), BATCHES)
    with pytest.raises(RewriteError, match="rewritten in fp32, and 8 bits stand beside fp16 or bf16"):
        quantize(Model.of(rewrite(original, verify=False).model), BATCHES)
    with pytest.raises(RewriteError, match="has no GEMM of tokens that padfree's kernels compute"):
        quantize(Model.of(rewrite(original, precision="fp16", verify=False).model), BATCHES)
    with pytest.raises(RewriteError, match="there is no calibration data"):
        quantize(half, [])


def test_data_that_overflow_are_named(half: Model) -> None:
    """A bias at the limit of fp16's range makes the feed-forward network's second product overflow."""
    proto = ModelProto()
    proto.CopyFrom(half.proto)
    up = next(node for node in padfree_nodes(proto.graph) if node_attributes(node).get("activation") == "gelu")
    bias = next(item for item in proto.graph.initializer if item.name == up.input[2])
    bias.CopyFrom(numpy_helper.from_array(np.full(INNER, 65504, np.float16), bias.name))
    broken = half.with_proto(proto)
    with pytest.raises(RewriteError, match=r"is not finite on calibration batch 1: the model's numbers overflow fp16"):
        quantize(broken, BATCHES)


def linears_that_activate(model: Model) -> tuple[str, ...]:
    """The first products of feed-forward networks."""
    results = [node for node in padfree_nodes(model.proto.graph) if node_attributes(node).get("activation") == "gelu"]
    return tuple(node.name for node in results)


def test_bf16_goes_through_float32(original: ModelProto) -> None:
    """onnxruntime has no QuantizeLinear of bfloat16."""
    plain = with_linear(Model.of(rewrite(original, precision="bf16", verify=False).model))
    kept = linears_that_activate(plain)
    actual = quantize(plain, BATCHES, QuantizationOptions(keep=kept))
    quantized = [node for node in actual.proto.graph.node if node.op_type == "QuantizeLinear"]
    makers = {name: node for node in actual.proto.graph.node for name in node.output}
    assert [makers[node.input[0]].op_type for node in quantized] == ["Cast"] * len(kept)
    assert describe(actual)["outputs"]["last_hidden_state"]["mean_cosine"] > 0.99


def norms_in_e4m3(model: Model) -> int:
    """The number of separate norms whose results are only in e4m3."""
    nodes = [node_attributes(node) for node in padfree_nodes(model.proto.graph) if node.op_type == "PadfreeLayerNorm"]
    return sum(node["results"] == "e4m3" for node in nodes)


@pytest.mark.parametrize("fold_streams", [True, False])
@pytest.mark.parametrize("name", ["deberta_v3", "modernbert", "mpnet", "nomic_bert", "qwen3_embedding"])
def test_other_families(name: str, fold_streams: bool, rewritings: Rewritings) -> None:
    """Biases, gates, rotations, RMS norms and pre-norm layers, whose streams are in both e4m3 and half precision."""
    source = folding_encoders.load(name)
    plain = Model.of(rewritings.of_folded(name, "fp16").model)
    linear = with_linear(plain, fold_streams=fold_streams)
    sample = sample_of(source, read_metadata(plain.proto))
    actual = quantize(linear, [sample.feeds], QuantizationOptions(largest_loss=10.0), verify=False)
    assert len(describe(actual)["layers"]) == folding_encoders.layers_of(linear.proto).linears
    wanted, got = (run(finish(model, "fp16"), dict(sample.feeds)) for model in (linear, actual))
    for a, b in zip(wanted, got, strict=True):
        x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
        assert x @ y / np.linalg.norm(x) / np.linalg.norm(y) > 0.97
    attention = [node for node in padfree_nodes(actual.proto.graph) if node.op_type == "PadfreeAttention"]
    assert attention
    assert all(node_attributes(node)["quantized"] for node in attention)
    if name in ("modernbert", "qwen3_embedding"):  # norms ahead of layers
        assert norms_in_e4m3(actual) < 2 if fold_streams else norms_in_e4m3(actual) > 2
    quantized = [node.input[0] for node in actual.proto.graph.node if node.op_type == "QuantizeLinear"]
    rows = [node.output[0] for node in padfree_nodes(actual.proto.graph) if node.op_type == "PadfreeTokenRows"]
    assert quantized == rows  # their kernel writes half precision


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(("operator", "place"), [("PadfreeLinearFp8", 2), ("QuantizeLinear", 1)])
def test_scales_in_a_file_are_checked(half: Model, scale: float, operator: str, place: int) -> None:
    rewritten = quantize(half, BATCHES, QuantizationOptions(keep=linears_that_activate(half)), verify=False)
    check_scales(import_graph(rewritten))
    changed = rewritten.with_proto(ModelProto())
    changed.proto.CopyFrom(rewritten.proto)
    node = next(node for node in changed.proto.graph.node if node.op_type == operator)
    tensor = next(item for item in changed.proto.graph.initializer if item.name == node.input[place])
    values = np.array(numpy_helper.to_array(tensor))
    values.reshape(-1)[-1] = scale
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    with pytest.raises(RewriteError, match=rf"{operator} .* has the scale {scale:g} .*allowed are finite"):
        check_scales(import_graph(changed))


@pytest.mark.parametrize("longer", [1.0, 20000.0])
def test_streams_whose_rows_differ_in_length(longer: float) -> None:
    """All rows share one scale: if one token's values are far larger, the norms' results are rounded instead."""
    source = folding_encoders.load("qwen3_embedding")
    plain = Model.of(rewrite(source, precision="fp16", verify=False).model)
    feeds = sample_of(source, read_metadata(plain.proto)).feeds
    tokens = next(value for name, value in feeds.items() if "ids" in name)
    (lookup,) = (node for node in plain.proto.graph.node if node.op_type == "Gather" and "embed" in node.input[0])
    (table,) = (item for item in plain.proto.graph.initializer if item.name == lookup.input[0])
    rows = numpy_helper.to_array(table).copy()
    rows[int(tokens.flat[0])] *= longer
    table.CopyFrom(numpy_helper.from_array(rows, table.name))
    begun = list[int]()

    def begin(batches: int) -> Callable[[], object]:
        begun.append(batches)
        return lambda: None

    actual = quantize_gemms(plain, [feeds], begin=begin, verify=False)
    assert begun == [1] * (1 if longer == 1 else 2)
    assert (norms_in_e4m3(actual) > 2) == (longer > 1)
    assert not describe(actual)["kept"]
    assert max(layer["loss"] for layer in describe(actual)["layers"]) < LARGEST_STREAM_LOSS
