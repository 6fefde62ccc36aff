# SPDX-License-Identifier: Apache-2.0
"""Quantised originals are compared without rounding activations, whose cost is reported; weights stay rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from padfree.builder.cli import main
from padfree.onnx_tools import load_model, rewrite, save_model
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.ort_session import open_session
from padfree.onnx_tools.synthetic import bert_model

from tests.support.quantizers import Quantizer, TorchQuantizer


@pytest.fixture(scope="module")
def original() -> ModelProto:
    return bert_model(1, 64, 2, 128, 50, 32)


def compare(folder: Path, given: ModelProto, candidate: ModelProto | None = None) -> tuple[int, dict[str, Any]]:
    """The exit code and the report."""
    path, report = folder / "model.onnx", folder / "report.json"
    save_model(given, path)
    files = []
    if candidate is not None:
        files = [str(folder / "candidate.onnx")]
        save_model(candidate, files[0])
    code = main(["compare", str(path), *files, "--max-seq-len", "20", "--json", str(report)])
    return code, json.loads(report.read_text())


FILES = {
    "ModelOpt, e4m3": (lambda: Quantizer("e4m3", "rounded"), "e4m3"),
    "ModelOpt, int8, stored": (lambda: Quantizer("int8", "stored"), "int8"),
    "torch, TensorRT's nodes": (lambda: TorchQuantizer("e4m3"), "e4m3"),
    "torch, SmoothQuant": (lambda: TorchQuantizer("int8", smooth=True), "int8"),
}


@pytest.mark.parametrize("name", FILES)
def test_the_rounding_of_activations_is_told_apart(tmp_path: Path, original: ModelProto, name: str) -> None:
    """fp32's tolerance holds with weights that onnxruntime dequantises."""
    make, kind = FILES[name]
    quantizer = make()
    code, report = compare(tmp_path, quantizer.apply(original))
    assert code == 0, report["verdict"]
    (note,) = report["notes"]
    assert note.startswith(f"the original rounds {quantizer.pairs} activations to {kind}; rewritten models do not")
    assert "as it is, it is up to 0." in note


def test_weights_are_those_of_the_file(tmp_path: Path, original: ModelProto) -> None:
    """A rewritten float model is a different model: its weights are not rounded."""
    source = Quantizer("int8", "rounded").apply(original)
    code, report = compare(tmp_path, source, rewrite(original).model)
    assert code == 1
    assert "weight 'qkv_weight' is changed" in report["verdict"]


def test_weights_alone_need_no_note(tmp_path: Path, original: ModelProto) -> None:
    """onnxruntime computes what the file says, and no products of integers."""
    source = TorchQuantizer("int8", rounds=False).apply(original)
    code, report = compare(tmp_path, source)
    assert (code, report["notes"]) == (0, [])
    feeds = {value.name: np.arange(24).reshape(2, 12) % 2 for value in source.graph.input}
    exact, actual = (open_session(Model(source), optimize=optimize).run(None, feeds) for optimize in (False, True))
    for a, b in zip(exact, actual, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_file_that_gives_no_numbers_is_told(tmp_path: Path, original: ModelProto) -> None:
    """Rewriting does not need the scales of activations; no Softmax after the changed scale hides NaN."""
    source = Quantizer("int8", "stored").apply(original)
    node = [node for node in source.graph.node if node.op_type == "QuantizeLinear"][-1]
    scale = next(item for item in source.graph.initializer if item.name == node.input[1])
    scale.CopyFrom(numpy_helper.from_array(np.array(np.inf, np.float32), scale.name))
    code, report = compare(tmp_path, source)
    assert code == 0, report["verdict"]
    assert "numbers that are infinite or not a number" in report["notes"][0]


@pytest.mark.parametrize("name", [*FILES, "weights alone"])
def test_polygraphy_gets_a_float_file(tmp_path: Path, original: ModelProto, name: str) -> None:
    """Polygraphy's onnxruntime would multiply in integers, and it does not know TensorRT's nodes."""
    path, folder = tmp_path / "model.onnx", tmp_path / "polygraphy"
    quantizer = TorchQuantizer("e4m3", rounds=False) if name == "weights alone" else FILES[name][0]()
    save_model(quantizer.apply(original), path)
    assert main(["compare", str(path), "--max-seq-len", "20", "--emit-polygraphy", str(folder)]) == 0
    result = folder / "model.float.onnx"
    assert str(result) in (folder / "commands.sh").read_text()
    assert not any("uantizeLinear" in node.op_type for node in load_model(result).graph.node)


def test_what_half_precision_outputs_are_given_back_by_is_no_change(tmp_path: Path, original: ModelProto) -> None:
    """A rewritten file ends in a Cast to the type that the original's outputs have; its reference has them in fp32."""
    half = convert_float_to_float16(original)
    candidate = rewrite(half).model
    weight = next(item for item in candidate.graph.initializer if item.name == "qkv_weight")
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
    code, report = compare(tmp_path, half, candidate)
    assert code == 1
    assert "weight 'qkv_weight' is changed" in report["verdict"]
    assert "Cast" not in json.dumps(report["runners"][0]["causes"])
