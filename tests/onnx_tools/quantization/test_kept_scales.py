# SPDX-License-Identifier: Apache-2.0
"""Files with int8 Q/DQ that keep their scales: the numbers of the result, beside onnxruntime, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, ValueInfoProto, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from padfree.onnx_tools import RewriteError, quantize_gemms, rewrite
from padfree.onnx_tools.eight_bits import QUANTIZATION
from padfree.onnx_tools.files.metadata import read_metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.quantized import stored_gemms
from padfree.onnx_tools.quantization import FORMATS, QuantizationOptions
from padfree.onnx_tools.rewrite import finish
from padfree.onnx_tools.synthetic import bert_model

from tests.onnx_tools.agreement import run
from tests.support.quantizers import ACTIVATION_SCALE, FORMS, Quantizer, TorchQuantizer, with_weights

VOCABULARY, WIDTH, INNER = 50, 64, 128
OPTIONS = QuantizationOptions(number_format=FORMATS["int8"])
LENGTHS = (20, 7, 13, 3)
FACTORS = np.exp2(np.arange(INNER) % 5 - 2)
"""TorchQuantizer's."""
FIRST_LAYER = 2.5e-3
"""fp16 changes what is rounded by 4e-4, which moves a few numbers by a whole step; rounding itself costs 7e-3."""

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def original() -> ModelProto:
    """Q and K are small, so that attention does not repeat what rounding changes many times."""
    model = bert_model(1, WIDTH, 2, INNER, VOCABULARY, 32)
    small = {
        item.name: numpy_helper.to_array(item) * np.float32(0.2)
        for item in model.graph.initializer
        if "query" in item.name or "key" in item.name
    }
    return with_weights(model, small)


def keep(source: ModelProto, batches: tuple[dict[str, Array], ...] = ()) -> Model:
    half = Model.of(rewrite(source, precision="fp16", verify=False).model)
    return quantize_gemms(half, batches, OPTIONS, stored_gemms=stored_gemms(Model.of(source)))


def gemms(model: Model) -> list[tuple[Array, Array]]:
    """Of each GEMM its weight [K,N] as stored, and the scales of its results."""
    held = {item.name: numpy_helper.to_array(item) for item in model.whole().graph.initializer}
    nodes = [node for node in model.proto.graph.node if node.op_type == "PadfreeLinearInt8"]
    return [(held[node.input[1]].T, held[node.input[2]]) for node in nodes]


def in_order(weights: dict[str, Array]) -> list[Array]:
    """The weights of a layer as its GEMMs have them."""
    parts = [["self.query", "self.key", "self.value"], ["attention.output"], ["intermediate"], ["0.output"]]
    return [np.hstack([next(w for n, w in weights.items() if part in n) for part in names]) for names in parts]


@pytest.mark.parametrize("form", [*FORMS, "torch", "smooth"])
def test_numbers_are_those_of_the_file(original: ModelProto, form: str) -> None:
    """Scales are rounded to fp16 as QuantizeLinear's; smoothed weights are what the file stores, not what it means."""
    of_torch = TorchQuantizer("int8", smooth=form == "smooth")
    quantizer = Quantizer("int8", form) if form in FORMS else of_torch
    made = keep(quantizer.apply(original))
    scale = float(np.float16(ACTIVATION_SCALE))
    for (codes, scales), wanted in zip(gemms(made), in_order(quantizer.weights), strict=True):
        stored = wanted / FACTORS[: len(wanted), np.newaxis] if form == "smooth" else wanted
        np.testing.assert_allclose(codes * (scales / np.float32(scale)), stored, rtol=1e-6)
    entry = read_metadata(made.proto)[QUANTIZATION]
    assert entry["kept_scales"] is True
    assert entry["kept"] == {}
    assert [layer["scale"] for layer in entry["layers"]] == [scale] * 4
    assert "loss" not in entry["layers"][0]
    assert ("Mul" in {node.op_type for node in made.proto.graph.node}) == (form == "smooth")


class Data(CalibrationDataReader):
    """Batches for onnxruntime's quantiser."""

    def __init__(self) -> None:
        self._batches = iter([feeds(seed) for seed in (1, 2, 3)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


def feeds(seed: int) -> dict[str, Array]:
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, (len(LENGTHS), max(LENGTHS)))
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, np.newaxis]).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def by_onnxruntime(model: ModelProto, folder: Path, **types: Any) -> ModelProto:
    """The model with Q/DQ before its GEMMs with weights, as onnxruntime's quantiser writes it."""
    path, result = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save_model(model, str(path))
    names = {item.name for item in model.graph.initializer}
    others = [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] not in names]
    quantize_static(
        str(path),
        str(result),
        Data(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul"],
        nodes_to_exclude=others,
        per_channel=True,
        **{"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8} | types,
        extra_options={"ActivationSymmetric": not types, "OpTypesToExcludeOutputQuantization": ["MatMul"]},
    )
    return onnx.load(str(result))


def test_answers_are_those_of_the_file_in_onnxruntime(original: ModelProto, tmp_path: Path) -> None:
    """The result of the first GEMM and the attention after it; with another scale they are far off."""
    source = by_onnxruntime(original, tmp_path)
    made = keep(source)
    padded = feeds(9)
    mask = padded["attention_mask"].astype(bool)
    packed = {name: padded[name][mask].astype(np.int32) for name in ("input_ids", "token_type_ids")}
    packed["seq_lens"] = np.array(LENGTHS, np.int32)
    name = next(item.input[0] for item in quantizers(source) if item.input[0].startswith("/Reshape"))
    wanted = run(with_output(source, name), padded)[0][mask]
    before = run(with_output(original, name), padded)[0][mask]

    def off(model: Model) -> float:
        actual = run(with_output(finish(model, "fp16"), "attention"), packed)[0].reshape(wanted.shape)
        return float(np.linalg.norm(actual.astype(np.float32) - wanted) / np.linalg.norm(wanted))

    assert off(made) < FIRST_LAYER
    assert np.linalg.norm(before - wanted) / np.linalg.norm(wanted) > 2 * FIRST_LAYER
    changed = made.whole()
    scale = next(quantizers(changed)).input[1]
    for item in changed.graph.initializer:
        if item.name == scale:
            item.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(item) * np.float16(1.05), scale))
    assert off(Model(changed)) > 10 * FIRST_LAYER


def quantizers(model: ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for node in model.graph.node if node.op_type == "QuantizeLinear")


def with_output(model: ModelProto, name: str) -> ModelProto:
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.output[:]
    result.graph.output.append(ValueInfoProto(name=name))
    return result


def test_data_measure_what_is_lost(original: ModelProto) -> None:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, 40).astype(np.int32)
    batch = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "seq_lens": np.array([30, 10], np.int32)}
    entry = read_metadata(keep(Quantizer("int8", "stored").apply(original), (batch,)).proto)[QUANTIZATION]
    assert all(0 < layer["loss"] < OPTIONS.largest_loss and layer["largest"] > 0 for layer in entry["layers"])
    assert entry["calibration"]["tokens"] == 40
    assert entry["outputs"]


def test_asymmetric_files_are_refused(original: ModelProto, tmp_path: Path) -> None:
    source = by_onnxruntime(original, tmp_path, activation_type=QuantType.QInt8)
    with pytest.raises(RewriteError, match=r"node '.*' \(DequantizeLinear\) has the zero point -?\d+, allowed is 0"):
        stored_gemms(Model.of(source))
    source = by_onnxruntime(original, tmp_path, activation_type=QuantType.QUInt8)
    with pytest.raises(RewriteError, match="has numbers of type uint8, allowed is int8; quantise symmetrically"):
        stored_gemms(Model.of(source))


@pytest.mark.parametrize("rounds", [True, False])
def test_files_without_such_gemms_are_refused(original: ModelProto, rounds: bool) -> None:
    source = TorchQuantizer("int8", rounds=False).apply(original) if rounds else original
    with pytest.raises(RewriteError, match="no GEMM whose input and weight both go through QuantizeLinear"):
        stored_gemms(Model.of(source))


def test_equal_weights_with_different_scales_are_not_confused() -> None:
    """Where layers share a weight, nothing tells which of the file's scales belongs to which GEMM."""
    model = bert_model(2, WIDTH, 2, INNER, VOCABULARY, 32)
    held = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    shared = {name: held[name.replace("layer.1", "layer.0")] for name in held if "layer.1.intermediate" in name}
    source = Quantizer("int8", "stored").apply(with_weights(model, shared))
    makers = {name: node for node in source.graph.node for name in node.output}
    up = [node for node in source.graph.node if node.op_type == "MatMul" and "/MatMul_119" in node.name]
    dequantize = makers[up[0].input[0]]
    for item in source.graph.initializer:
        if item.name == dequantize.input[1]:
            item.CopyFrom(numpy_helper.from_array(np.float32(2 * ACTIVATION_SCALE), item.name))
    entry = read_metadata(keep(source).proto)[QUANTIZATION]
    assert len(entry["layers"]) == 6
    assert len(entry["kept"]) == 2
    assert all("has the scale 0.1 in" in reason for reason in entry["kept"].values())
