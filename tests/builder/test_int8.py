# SPDX-License-Identifier: Apache-2.0
"""The commands around int8: what they write, show and compare, and which GPUs it is for."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import onnx
import pytest
from padfree.builder import BuildError
from padfree.builder.calibration import is_quantized
from padfree.builder.cli import main
from padfree.builder.engine.linear import FP8_OPERATOR, choose_linear, eight_bit_problem
from padfree.onnx_tools.synthetic import bert_model
from padfree.runtime.gpu.device import Device

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
