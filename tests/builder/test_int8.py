# SPDX-License-Identifier: Apache-2.0
"""The commands around int8: what they write, show and compare, and which GPUs it is for."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import onnx
import onnx_graphsurgeon as gs
import pytest
from padfree.builder import BuildError
from padfree.builder.calibration import Calibration, is_quantized, quantized_model
from padfree.builder.cli import main
from padfree.builder.engine.linear import FP8_OPERATOR, choose_linear, eight_bit_problem
from padfree.onnx_tools.files import Model, graph_io, read_metadata
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.quantization import QuantizationOptions
from padfree.onnx_tools.quantization.formats import FORMATS
from padfree.onnx_tools.synthetic import bert_model
from padfree.runtime.gpu.device import Device

from tests.support.quantizers import Quantizer

from .test_calibration import Capture, ids


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("int8") / "bert.onnx"
    onnx.save_model(bert_model(2, 64, 2, 128, 100, 64), str(path))
    return path


@pytest.fixture(scope="module")
def int8(model: Path) -> Path:
    """The model, as `padfree optimize --precision int8` writes it."""
    path, data = model.with_name("int8.onnx"), ids(model.with_name("ids.jsonl"), (60,) * 12)
    command = ["optimize", str(model), "-o", str(path), "--precision", "int8", "--calibrate", str(data)]
    assert main([*command, "--keep", "qkv*", "--no-verify"]) == 0
    return path


@pytest.mark.parametrize("number_format", ["int8", pytest.param("fp8", marks=pytest.mark.slow)])
def test_a_model_is_converted_once_from_rewriting_to_8_bits(
    model: Path, number_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibration runs what the graph is at a time, but the graph is never made of such a file again."""
    imported: list[str] = []

    def import_graph(source: Model) -> gs.Graph:
        imported.append(source.proto.graph.name)
        return graph_io.import_graph(source)

    for name in ("importing.typed_graph", "graph_model"):
        monkeypatch.setattr(f"padfree.onnx_tools.{name}.import_graph", import_graph)
    data = ids(model.with_name(f"{number_format}.jsonl"), (60,) * 4)
    options = QuantizationOptions(number_format=FORMATS[number_format])
    result = quantized_model(
        Model.of(onnx.load(model)),
        model,
        Calibration(data, options=options),
        RewriteOptions(verify=False),
        begin=lambda *_: lambda: None,
    )
    assert read_metadata(result.proto)["quantization"]["layers"]
    assert len(imported) == 1


def test_it_is_inspected(int8: Path, capsys: Capture) -> None:
    assert is_quantized(int8)
    capsys.readouterr()
    assert main(["inspect", str(int8), "--verbose"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "GEMMs in int8, else fp16",
        "PadfreeLinearInt8",
        "with room for 1.25 times",
        "GEMMs in half precision",
        "multiplications are in int8",
        "per token",
    ):
        assert text in shown


def test_compare_knows_it(model: Path, int8: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert main(["compare", str(model), str(int8), "--max-seq-len", "32", "--json", str(report)]) == 0
    runner = json.loads(report.read_text())["runners"][0]
    assert (runner["precision"], runner["tolerance"]["cosine"]) == ("int8", 0.97)
    assert all(0.98 < item["total"]["sequence_cosine"] < 1 for item in runner["outputs"])


def test_gpus_that_it_is_for(int8: Path, caplog: pytest.LogCaptureFixture) -> None:
    proto = onnx.load(str(int8))
    a10, hopper = Device(0, "NVIDIA A10", 8, 6), Device(0, "NVIDIA H200", 9, 0)
    with caplog.at_level(logging.WARNING, "padfree"):
        assert choose_linear("auto", proto, "fp16", a10) == "padfree"
        assert not caplog.records
        assert choose_linear("auto", proto, "fp16", hopper) == "padfree"
        assert "NVIDIA H200 has e4m3, for which fp8 is the better choice" in caplog.text
    with pytest.raises(BuildError, match=r"is in int8, and PadfreeLinearInt8 needs compute capability 8.0 or newer"):
        choose_linear("auto", proto, "fp16", Device(0, "NVIDIA T4", 7, 5))
    assert "has 8.6, where --precision int8 is what takes 8 bits" in eight_bit_problem(FP8_OPERATOR, a10)


@pytest.fixture(scope="module")
def quantized(model: Path) -> Path:
    """The model with int8 Q/DQ, as ModelOpt writes it."""
    path = model.with_name("quantized.onnx")
    onnx.save_model(Quantizer("int8", "stored").apply(onnx.load(str(model))), str(path))
    return path


@pytest.mark.slow
def test_a_quantised_file_keeps_its_scales(quantized: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "kept.onnx"
    command = ["optimize", str(quantized), "-o", str(path), "--precision", "int8", "--keep-scales", "--no-verify"]
    assert main([*command, "--keep", "*129*"]) == 0
    assert "the file was quantised (int8), its scales are kept; 7 of 8 GEMMs in int8" in capsys.readouterr().out
    assert main(["inspect", str(path), "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "scales are those of the file that was quantised before" in shown
    assert "puts GEMMs into 8 bits" not in shown
    assert main(["compare", str(quantized), str(path), "--max-seq-len", "32", "--relative-tolerance", "0.001"]) == 1
    assert "which GEMMs lose most is measured with --calibrate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "fp8"], "--keep-scales is for --precision int8"),
        (["--precision", "fp16"], "--keep-scales is for --precision fp8 or int8"),
        (["--precision", "int8", "--margin", "2"], "--margin makes scales of the data, and --keep-scales takes"),
        (["--precision", "int8", "--largest-loss", "0.2"], "--largest-loss needs --calibrate FILE"),
        (["--precision", "int8", "--least-cosine", "0.99"], "--least-cosine needs --calibrate FILE"),
    ],
)
def test_what_does_not_go_with_kept_scales(
    quantized: Path, tmp_path: Path, capsys: Capture, options: list[str], message: str
) -> None:
    assert main(["optimize", str(quantized), "-o", str(tmp_path / "x.onnx"), "--keep-scales", *options]) != 0
    assert message in capsys.readouterr().err


def test_rewritten_files_are_quantized(model: Path, tmp_path: Path) -> None:
    """Of a file that padfree rewrote in fp16, `optimize` makes one in int8, as of the original."""
    half, path, data = tmp_path / "half.onnx", tmp_path / "int8.onnx", ids(tmp_path / "ids.jsonl", (60,) * 12)
    assert main(["optimize", str(model), "-o", str(half), "--precision", "fp16", "--no-verify"]) == 0
    assert main(["optimize", str(half), "-o", str(path), "--precision", "int8", "--calibrate", str(data)]) == 0
    assert read_metadata(onnx.load_model(str(path)))["quantization"]["layers"]


def test_files_without_scales_are_refused(model: Path, int8: Path, tmp_path: Path, capsys: Capture) -> None:
    command = ["-o", str(tmp_path / "x.onnx"), "--precision", "int8", "--keep-scales"]
    assert main(["optimize", str(model), *command]) != 0
    assert "there are no scales to keep; leave out --keep-scales" in capsys.readouterr().err
    assert main(["optimize", str(int8), *command]) != 0
    assert "a rewritten file has no scales to keep" in capsys.readouterr().err
