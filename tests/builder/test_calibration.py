# SPDX-License-Identifier: Apache-2.0
"""Calibration data from files, and the commands around fp8: their results, and what is refused and why."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from padfree.builder import BuildError, BuildOptions
from padfree.builder.calibration import BATCH_TOKENS, Calibration, calibration_batches, is_quantized
from padfree.builder.cli import main
from padfree.builder.engine.linear import choose_linear, linear_of
from padfree.builder.engine.preparation import check_rewritten, metadata_of
from padfree.contract.metadata import Metadata
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.synthetic import bert_model
from padfree.runtime import SessionError
from padfree.runtime.gpu import plugin_library, trt
from padfree.runtime.gpu.device import Device
from padfree.runtime.plan_files import parse_metadata

Capture = pytest.CaptureFixture[str]
VOCABULARY, LONGEST = 100, 512
LENGTHS = (500, 3, 0, 512, 512, 512, 10)


def ids(path: Path, lengths: tuple[int, ...] = LENGTHS, high: int = VOCABULARY) -> Path:
    rng = np.random.default_rng(0)
    path.write_text("".join(f"{json.dumps(rng.integers(0, high, length).tolist())}\n" for length in lengths))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibration") / "bert.onnx"
    onnx.save_model(bert_model(2, 64, 2, 128, VOCABULARY, LONGEST), str(path))
    return path


@pytest.fixture(scope="module")
def metadata(model: Path) -> Metadata:
    return parse_metadata(metadata_of(rewrite(model, precision="fp16", verify=False).model), "test")


@pytest.fixture(scope="module")
def fp8(model: Path) -> Path:
    """The model, as `padfree optimize --precision fp8` writes it."""
    path, data = model.with_name("fp8.onnx"), ids(model.with_name("ids.jsonl"), (60, 7, 33))
    command = ["optimize", str(model), "-o", str(path), "--precision", "fp8", "--calibrate", str(data), "--no-verify"]
    assert main(command) == 0
    return path


def test_batches_are_whole_sequences(metadata: Metadata, tmp_path: Path) -> None:
    """Empty sequences are left out, and all others are there, in an order of their own, which is always the same."""
    file = ids(tmp_path / "ids.jsonl")
    batches = calibration_batches(Calibration(file), metadata, tmp_path / "model.onnx")
    assert len(batches) == 2
    assert all(feeds["input_ids"].size <= BATCH_TOKENS for feeds in batches)
    sequences = [
        part.tolist() for feeds in batches for part in np.split(feeds["input_ids"], np.cumsum(feeds["seq_lens"])[:-1])
    ]
    rows = [row for row in map(json.loads, file.read_text().splitlines()) if row]
    assert sorted(sequences) == sorted(rows)
    assert sequences != rows
    again = calibration_batches(Calibration(file), metadata, tmp_path / "model.onnx")
    assert [feeds["input_ids"].tolist() for feeds in again] == [feeds["input_ids"].tolist() for feeds in batches]


def test_few_tokens_are_told_of(metadata: Metadata, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "padfree"):
        calibration_batches(Calibration(ids(tmp_path / "few.jsonl", (5, 6))), metadata, tmp_path / "model.onnx")
    assert "11 tokens are few for scales" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.jsonl", "", "holds 0 sequences and no token"),
        ("empty.jsonl", "[]\n[]\n", "holds 2 sequences and no token"),
        ("high.jsonl", "[5, 100]\n", r"--calibrate .*high.jsonl: 'input_ids' value 100 .*: allowed 0..99"),
        ("other.jsonl", '{"pixels": [1]}\n', "--calibrate .*: unknown input 'pixels'"),
        ("long.jsonl", json.dumps([1] * 513) + "\n", "sequence 0 has 513 tokens, the model has 512 positions"),
        ("texts.txt", "a text\n", "--calibrate|tokenizer"),
        ("ids.xlsx", "1,2", "unknown kind of input '.xlsx'"),
        ("broken.jsonl", "[1, 2", "line 1: not JSON"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    metadata: Metadata, tmp_path: Path, name: str, content: str, message: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises((BuildError, SessionError), match=message):
        calibration_batches(Calibration(file), metadata, tmp_path / "model.onnx")


def test_files_that_are_not_there_are_refused(metadata: Metadata, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"none\.jsonl: cannot be read"):
        calibration_batches(Calibration(tmp_path / "none.jsonl"), metadata, tmp_path / "model.onnx")


def test_optimize_writes_what_runs_and_is_inspected(fp8: Path, tmp_path: Path, capsys: Capture) -> None:
    capsys.readouterr()
    assert main(["inspect", str(fp8), "--verbose"]) == 0
    shown = capsys.readouterr().out
    for text in ("GEMMs in e4m3, else fp16", "largest input", "PadfreeLinearFp8", "scales from 100 tokens"):
        assert text in shown
    data = ids(tmp_path / "run.jsonl", (5, 12))
    assert main(["run", str(fp8), "--input", str(data), "-o", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as actual:
        assert actual["last_hidden_state"].shape == (17, 64)
        assert np.isfinite(actual["last_hidden_state"]).all()


def test_compare_knows_fp8(model: Path, fp8: Path, tmp_path: Path, capsys: Capture) -> None:
    report = tmp_path / "report.json"
    assert main(["compare", str(model), str(fp8), "--max-seq-len", "32", "--bisect", "--json", str(report)]) == 0
    shown = capsys.readouterr().out
    assert "(fp8)" in shown
    assert "of a sequence 0.9" in shown
    assert "on average it grows most, by" in shown
    runner = json.loads(report.read_text())["runners"][0]
    assert (runner["precision"], runner["tolerance"]["cosine"]) == ("fp8", 0.97)
    assert all(0.97 < item["total"]["sequence_cosine"] < 1 for item in runner["outputs"])


def test_compare_names_the_gemms_that_lose_most(model: Path, fp8: Path, capsys: Capture) -> None:
    command = ["compare", str(model), str(fp8), "--max-seq-len", "32", "--relative-tolerance", "0.01"]
    assert main(command) == 1
    shown = capsys.readouterr().out
    assert "fp8 loses too many digits in this model: in onnxruntime the same file is" in shown
    assert "which --keep leaves in half precision" in shown


@pytest.mark.parametrize("command", ["optimize", "build"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "fp8"], "--precision fp8 needs --calibrate FILE: scales follow from the largest numbers"),
        (["--calibrate", "x.txt"], "--calibrate is for --precision fp8 or int8; pass one of them too, or leave"),
        (["--keep", "x", "--precision", "fp16"], "--keep is for --precision fp8"),
        (["--precision", "fp8", "--calibrate", "x.txt", "--margin", "99"], "the margin is 99, allowed: 1 to 64"),
    ],
)
def test_options_that_do_not_go_together(
    model: Path, tmp_path: Path, capsys: Capture, command: str, options: list[str], message: str
) -> None:
    out = tmp_path / ("out.plan" if command == "build" else "out.onnx")
    assert main([command, str(model), "-o", str(out), *options]) != 0
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_machines_that_cannot_build_say_so_before_calibrating(
    model: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("padfree.builder.engine.build.import_tensorrt", lambda: None)
    monkeypatch.setattr("padfree.builder.engine.build.open_gpu", lambda _: Device(0, "NVIDIA A10", 8, 6))
    monkeypatch.setattr("padfree.runtime.gpu.plugin_library.find", lambda: Path("libpadfree.so"))
    monkeypatch.setattr("padfree.runtime.gpu.plugin_library.require", lambda _: None)
    data = ids(tmp_path / "ids.jsonl", (60,))
    command = ["build", str(model), "-o", str(tmp_path / "out.plan"), "--precision", "fp8", "--calibrate", str(data)]
    assert main(command) == 1
    message = capsys.readouterr().err
    assert "cannot be built here: PadfreeLinearFp8 needs compute capability 8.9 or newer, NVIDIA A10 has 8.6" in message
    assert list(tmp_path.iterdir()) == [data]


def test_libraries_without_the_plugin_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    creators = [SimpleNamespace(name="PadfreeAttention"), SimpleNamespace(name="PadfreeLinear")]
    registry = SimpleNamespace(all_creators=creators)
    tensorrt = SimpleNamespace(get_plugin_registry=lambda: registry)
    monkeypatch.setattr(trt, "import_tensorrt", lambda: tensorrt)
    monkeypatch.setattr(plugin_library, "find", lambda: Path("libpadfree.so"))
    plugin_library.require(["PadfreeLinear"])
    with pytest.raises(SessionError, match=r"libpadfree\.so has no plugin PadfreeLinearFp8: the library is older than"):
        plugin_library.require(["PadfreeLinear", "PadfreeLinearFp8"])


def test_a_file_in_fp8_is_built_as_one(fp8: Path) -> None:
    assert is_quantized(fp8)
    actual = Model(onnx.load(str(fp8)))
    assert linear_of(actual.proto) == "padfree"
    check_rewritten(actual.proto, BuildOptions(precision="fp8"))
    with pytest.raises(BuildError, match="rewritten with precision fp8, fp16 was asked for"):
        check_rewritten(actual.proto, BuildOptions(precision="fp16"))
    hopper = Device(0, "NVIDIA H200", 9, 0)
    for device in (hopper, Device(0, "NVIDIA L4", 8, 9)):
        assert choose_linear("auto", actual.proto, "fp16", device) == "padfree"
    with pytest.raises(BuildError, match=r"is in fp8, and PadfreeLinearFp8 needs compute capability 8.9 or newer"):
        choose_linear("auto", actual.proto, "fp16", Device(0, "NVIDIA A10", 8, 6))
    with pytest.raises(BuildError, match="is in fp8, and --linear tensorrt was asked for; build from the original"):
        choose_linear("tensorrt", actual.proto, "fp16", hopper)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_are_no_scales_are_refused(fp8: Path, scale: float) -> None:
    raw = metadata_of(onnx.load(str(fp8)))
    raw["quantization"]["layers"][0]["scale"] = scale
    with pytest.raises(SessionError, match=r"quantization\.layers\[0\]\.scale is"):
        parse_metadata(raw, "test")
