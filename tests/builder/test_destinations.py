# SPDX-License-Identifier: Apache-2.0
"""No command destroys the user's files: outputs may not be inputs, other outputs, devices, or others' files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from padfree.builder import BuildError
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.destinations import check_appended, check_destinations, sidecar_destination
from padfree.onnx_tools import load_model

MODEL = DEMO_DATA / "bert_tiny.onnx"
TEXTS = DEMO_DATA / "texts.txt"
ModelWriter = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


def content(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder, or the target if it is a link."""
    return {
        str(path.relative_to(folder)): str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def folder_of_results(tmp_path: Path, packed_model: ModelWriter, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: an export with torch's data file, a rewritten model, and everything that commands read."""
    monkeypatch.chdir(tmp_path)
    model = load_model(MODEL)
    onnx.save_model(model, "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    packed_model()
    Path("texts.txt").write_bytes(TEXTS.read_bytes())
    Path("tokenizer.json").write_bytes((DEMO_DATA / "tokenizer.json").read_bytes())
    Path("batch.jsonl").write_text('{"input_ids": [1, 2]}\n')
    Path("lengths").write_text("3\n4\n")
    Path("costs.json").write_text("{}")
    Path("config.json").write_text('{"model_type": "bert"}')
    Path("folder").mkdir()
    Path("folder", "config.json").write_text("{}")
    Path("link.onnx").symlink_to("model.onnx")
    os.link("batch.jsonl", "hard.jsonl")
    os.mkfifo("pipe")
    return tmp_path


OPTIMIZE = "optimize model.onnx --no-verify -o"
RUN = "run packed.onnx --input batch.jsonl -o"
BENCH = "bench model.onnx --cpu --json"
COMPARE = "compare model.onnx packed.onnx --data texts.txt --tokenizer tokenizer.json"
SIMULATE = "simulate costs.json --trace batch.jsonl --lengths lengths"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{OPTIMIZE} model.onnx", "-o model.onnx is the model, model.onnx, which would be lost"),
        (f"{OPTIMIZE} ./folder/../model.onnx", "is the model"),
        (f"{OPTIMIZE} link.onnx", "is the model"),
        ("optimize link.onnx -o model.onnx", "is the model"),
        (f"{OPTIMIZE} model.onnx.data", "-o model.onnx.data is a file of weights of the model"),
        (f"{OPTIMIZE} new.onnx --report new.onnx", "--report new.onnx is the file that -o writes"),
        (f"{OPTIMIZE} new.onnx --report ./new.onnx", "is the file that -o writes"),
        (f"{OPTIMIZE} new.onnx --report model.onnx", "--report model.onnx is the model"),
        (
            f"{OPTIMIZE} packed",
            "-o packed: optimize writes an .onnx file, which is known by its name later; name it packed.onnx",
        ),
        (f"{OPTIMIZE} bge-v1.5", "name it bge-v1.5.onnx"),
        (f"{OPTIMIZE} new.plan", "name it new.onnx, or make a plan with padfree build"),
        (f"{OPTIMIZE} new.onnx --report new.html", "--report new.html: the coverage report is JSON; name it new.json"),
        (f"{OPTIMIZE} /dev/null", "-o /dev/null is a device, which no file may replace"),
        (f"{OPTIMIZE} pipe", "-o pipe is a pipe"),
        (f"{OPTIMIZE} folder", "-o folder is a folder"),
        ("build model.onnx -o model.onnx", "-o model.onnx: a plan is no .onnx file"),
        ("build model.onnx -o model.onnx.data", "is a file of weights of the model"),
        ("build model.onnx -o config", "its metadata would go to config.json, a file that is no plan's"),
        ("build model.onnx -o new.plan --timing-cache model.onnx", "--timing-cache model.onnx is the model"),
        ("build model.onnx -o new.plan --timing-cache new.plan", "--timing-cache new.plan is the file that -o writes"),
        ("build model.onnx -o new.plan --timing-cache /dev/null", "--timing-cache /dev/null is a device"),
        (f"{RUN} packed.onnx", "-o packed.onnx is the model"),
        (f"{RUN} batch.jsonl", "-o batch.jsonl is --input"),
        (f"{RUN} hard.jsonl", "-o hard.jsonl is --input, batch.jsonl"),
        (f"{RUN} tokenizer.json --tokenizer tokenizer.json", "is --tokenizer"),
        (f"{BENCH} model.onnx", "--json model.onnx is the model"),
        (f"{BENCH} lengths --lengths lengths", "--json lengths is --lengths"),
        (f"{BENCH} config.json", "--json config.json holds something other than measurements"),
        (f"{COMPARE} --json packed.onnx", "--json packed.onnx is the model"),
        (f"{COMPARE} --html texts.txt", "--html texts.txt is --data"),
        (f"{COMPARE} --json a --html a", "--html a is the file that --json writes"),
        (f"{COMPARE} --torch-model folder --json folder/config.json", "is a file of --torch-model"),
        ("costs packed.onnx -o packed.onnx", "-o packed.onnx is the model"),
        (f"{SIMULATE} --json costs.json", "--json costs.json is the cost table"),
        (f"{SIMULATE} --save-trace batch.jsonl", "--save-trace batch.jsonl is --trace"),
        (f"{SIMULATE} --plot lengths", "--plot lengths is --lengths"),
    ],
)
def test_nothing_of_the_users_is_lost(folder_of_results: Path, capsys: Capture, command: str, words: str) -> None:
    Path("pipe").unlink() if "pipe" not in command else None
    before = content(folder_of_results) if "pipe" not in command else {}
    assert main(command.split()) == 1
    error = capsys.readouterr().err
    assert words in error, error
    assert error.count("\n") == 1
    if before:
        assert content(folder_of_results) == before
    else:
        assert Path("pipe").is_fifo()


def test_a_folder_of_scripts_of_others(folder_of_results: Path, capsys: Capture) -> None:
    Path("pipe").unlink()
    Path("folder", "compare.py").write_text("mine")
    before = content(folder_of_results)
    assert main(["compare", "model.onnx", "--emit-polygraphy", "folder"]) == 1
    assert "--emit-polygraphy folder holds compare.py, and no comparison that padfree wrote" in capsys.readouterr().err
    assert content(folder_of_results) == before


def test_data_files_of_others_stay(folder_of_results: Path) -> None:
    """PyTorch names a file of weights after the model, followed by ".data"; other programs use any names."""
    Path("pipe").unlink()
    others = {
        "new.onnx.0123456789abcdef.data": b"of the right form, and nothing refers to it",
        "new.onnx.train.data": b"not of our form",
    }
    for name, data in others.items():
        Path(name).write_bytes(data)
    before = content(folder_of_results)
    for _ in range(2):
        assert main([*OPTIMIZE.split(), "new.onnx"]) == 0
        after = content(folder_of_results)
        assert {name: data for name, data in after.items() if name != "new.onnx"} == before
        assert load_model("model.onnx") == load_model(MODEL)


@pytest.mark.usefixtures("folder_of_results")
def test_a_plans_metadata_is_read_with_it(write_plan: ModelWriter, capsys: Capture) -> None:
    write_plan()
    assert main(["costs", "model.plan", "-o", "model.plan.json"]) == 1
    assert "-o model.plan.json is the metadata of the model" in capsys.readouterr().err


def test_results_may_be_written_again(folder_of_results: Path) -> None:
    costs = ["costs", "packed.onnx", "-o", "packed.onnx.json", "--lengths", "4,8", "--batches", "1,2", "--repeats", "1"]
    for _ in range(2):
        assert main(costs) == 0
        assert main([*OPTIMIZE.split(), "new.onnx", "--report", "report.json"]) == 0
        assert main([*RUN.split(), "out.npz"]) == 0
    assert folder_of_results.joinpath("report.json").is_file()


def test_measurements_are_added_to_measurements(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    check_appended(file, "--json")
    file.write_text('{"date": "2026-01-01"}\n')
    check_appended(file, "--json")
    for text in ("[1]\n", "3\n", '{"a": 1}\n', '{"date": "2026-01-01"}', '{\n "date": "2026-01-01"\n}\n'):
        file.write_text(text)
        with pytest.raises(BuildError, match="holds something other than measurements"):
            check_appended(file, "--json")


def test_a_plans_metadata_is_replaced_by_its_own_kind(tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    assert sidecar_destination(plan) == tmp_path / "model.plan.json"
    sidecar_destination(plan).write_text(json.dumps({"format": 1, "interface": "packed", "engine": {}}))
    sidecar_destination(plan)
    for text in ("{", "[]", '{"format": 1}'):
        (tmp_path / "model.plan.json").write_text(text)
        with pytest.raises(BuildError, match="no plan's metadata and would be lost"):
            sidecar_destination(plan)


def test_a_cache_of_links(tmp_path: Path) -> None:
    """Model hubs keep files under digests and link to them; a model's weights are found beside the link."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    onnx.save_model(
        load_model(MODEL), str(blobs / "x"), save_as_external_data=True, location="weights", size_threshold=0
    )
    (snapshot / "model.onnx").symlink_to(blobs / "x")
    (snapshot / "weights").symlink_to(blobs / "weights")
    for output in (blobs / "x", blobs / "weights", snapshot / "weights"):
        with pytest.raises(BuildError, match="which would be lost"):
            check_destinations([("-o", output)], [("the model", snapshot / "model.onnx")])
    check_destinations([("-o", blobs / "y")], [("the model", snapshot / "model.onnx")])


def test_destinations_are_checked_early(tmp_path: Path) -> None:
    check_destinations([("-o", tmp_path / "new.plan"), ("--report", None)], [("the model", tmp_path / "none.onnx")])
    for path, words in (
        (tmp_path, "is a folder; name a file in it"),
        (tmp_path / "nowhere" / "new.plan", r"does not exist; make it first: mkdir -p"),
    ):
        with pytest.raises(BuildError, match=words):
            check_destinations([("-o", path)])
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(BuildError, match="cannot be looked at"):
        check_destinations([("-o", tmp_path / "round")])
    check_destinations([], caches=[("--timing-cache", tmp_path / "nowhere" / "cache")])


STOPPED = """
import signal, sys, time
for number in (signal.SIGHUP, signal.SIGTERM):  # whoever runs the tests may ignore them
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
import padfree.builder.cli as cli
from padfree.builder.files import write_with

def write(stream):
    stream.write(b"half")
    stream.flush()
    print("writing", flush=True)
    time.sleep(60)

cli.optimize.run = lambda arguments: write_with(arguments.output, write)
sys.exit(cli.main(["optimize", "model.onnx", "-o", sys.argv[1]]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_leave_no_file_behind(tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "new.onnx"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", STOPPED, str(output)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert "no file is half written" in error
    assert list(tmp_path.iterdir()) == []
