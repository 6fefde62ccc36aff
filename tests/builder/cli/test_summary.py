# SPDX-License-Identifier: Apache-2.0
"""What optimize, build and inspect end with: a few lines, the last of which is a command that works as printed."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from padfree.builder import gpu_files
from padfree.builder.cli import main
from padfree.builder.cli.summary import rewriting_lines
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine.preparation import metadata_of
from padfree.onnx_tools import load_model
from padfree.onnx_tools.verification.half_precision import LARGEST_ERRORS
from padfree.onnx_tools.verification.token_numbers import RELATIVE_TOLERANCE

from tests.support import exports
from tests.support.classifiers import small_folder
from tests.support.fake_builder import fake_builder
from tests.support.folders import write_folder

Capture = pytest.CaptureFixture[str]
MOST_LINES, WIDTH = 8, 80
INCOMPLETE = "bert_relkey_tf4_p160_ts17"  # attention that stays padded for four reasons, a mask beyond fp16
LONG = ("passes", "roofline", "GEMMs")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands name files as a user does, relative to the folder that they run in."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DEMO_DATA / "bert_tiny.onnx", "model.onnx")


def lines_of(capsys: Capture, *command: str) -> dict[str, str]:
    """Runs a command, checks the form of the lines that it prints, and returns them by their labels."""
    assert main([*command]) == 0
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert 0 < len(lines) <= MOST_LINES
    assert not [line for line in lines if line.startswith(("┃", "│", "┏"))], "a table"
    assert not [word for word in LONG if word in output]
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def run_as_printed(line: str) -> None:
    """Runs a printed line as a shell does."""
    name, *arguments = shlex.split(line)
    assert name == "padfree"
    assert main(arguments) == 0


def test_optimize(capsys: Capture) -> None:
    pytest.importorskip("polygraphy")
    actual = lines_of(capsys, "optimize", "model.onnx", "-o", "packed.onnx", "--precision", "fp16")
    assert list(actual) == ["packed", "errors", "wrote", "next"]
    assert actual["packed"] == "everything; no padding is computed"
    assert actual["wrote"] == "packed.onnx: packed interface, fp16"
    run_as_printed(actual["next"])
    assert "PASSED" in capsys.readouterr().out


@pytest.mark.slow
def test_options_that_say_what_the_original_is_are_part_of_the_next_command(capsys: Capture) -> None:
    pytest.importorskip("polygraphy")
    head = ["--pooling", "mean,cls", "--no-normalize", "--mask", "attention_mask"]
    shown = lines_of(capsys, "inspect", "model.onnx", *head)
    run_as_printed(shown["next"])
    capsys.readouterr()
    assert [item["name"] for item in metadata_of(load_model(Path("packed.onnx")))["outputs"]] == ["sentence_embedding"]
    run_as_printed(lines_of(capsys, "optimize", "model.onnx", "-o", "other.onnx", *head)["next"])
    assert "PASSED" in capsys.readouterr().out


def test_the_errors_are_those_that_were_measured(capsys: Capture) -> None:
    actual = lines_of(capsys, "optimize", "model.onnx", "-o", "packed.onnx", "--precision", "bf16")
    measured = metadata_of(load_model(Path("packed.onnx")))["verification"]
    names = {item.name for item in onnx.load("model.onnx").graph.output}
    half = measured["half_precision"]
    assert set(measured["errors"]) == set(half["errors"]) == names
    assert (measured["allowed"], half["allowed"]) == (RELATIVE_TOLERANCE, LARGEST_ERRORS["bf16"])
    assert 0 < max(measured["errors"].values()) < RELATIVE_TOLERANCE
    assert 1e-3 < max(half["errors"].values()) < LARGEST_ERRORS["bf16"]  # bf16 has 8 significant bits
    assert f"{max(half['errors'].values()):.1e}" in actual["errors"]
    unverified = lines_of(capsys, "optimize", "model.onnx", "-o", "packed.onnx", "--no-verify")
    assert unverified["errors"] == "not measured: the original was not compared"
    assert "verification" not in metadata_of(load_model(Path("packed.onnx")))


@pytest.mark.slow
def test_what_stays_padded_is_said_with_one_reason(capsys: Capture) -> None:
    onnx.save(exports.load(INCOMPLETE), "model.onnx")
    command = ["optimize", "model.onnx", "-o", "packed.onnx", "--precision", "fp16", "--report", "report.json"]
    actual = lines_of(capsys, *command)
    report = json.loads(Path("report.json").read_text())
    assert f"{len(report['islands'])} nodes stay padded: '" in actual["packed"]
    assert "is added to the scores and is neither a mask nor made of positions alone" in actual["packed"]
    assert actual["packed"].endswith("(3 more reasons: --verbose)")
    assert "in float32" in actual["types"]
    assert report["passes"]
    assert report["costs"]["roofline"]
    assert main([*command, "--verbose"]) == 0
    output = capsys.readouterr().out
    assert all(word in output for word in ("position tables", "roofline", "near misses"))


@pytest.mark.parametrize("modules", [[("Pooling", {"pooling_mode": "mean"})], []])
def test_a_folder_runs_on_a_text_next(capsys: Capture, modules: list[Any]) -> None:
    write_folder(Path("small model"), modules=modules)
    actual = lines_of(capsys, "optimize", "small model", "-o", "packed.onnx")
    assert actual["wrote"].startswith("packed.onnx and packed.onnx.tokenizer.json")
    run_as_printed(actual["next"])
    with np.load("out.npz") as results:
        (name,) = [item["name"] for item in metadata_of(load_model(Path("packed.onnx")))["outputs"][:1]]
        assert np.isfinite(results[name]).all()
    capsys.readouterr()
    run_as_printed(lines_of(capsys, "inspect", "packed.onnx")["next"])


def test_a_file_in_bf16_is_not_run_on_a_cpu_next(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime has no kernels for it: compare rounds in float32, and engines have them."""
    monkeypatch.setattr(gpu_files, "DEVICE_FILES", (Path("nvidiactl"),))
    write_folder(Path("small"), modules=[("Pooling", {"pooling_mode": "mean"})])
    actual = lines_of(capsys, "optimize", "small", "-o", "packed.onnx", "--precision", "bf16", "--no-verify")
    assert actual["next"] == "padfree compare small packed.onnx"
    assert lines_of(capsys, "inspect", "packed.onnx")["next"] == "padfree build packed.onnx -o packed.plan"


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_model_without_texts_goes_where_this_machine_can(
    has_gpu: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_files, "DEVICE_FILES", (Path("nvidiactl"),))
    if has_gpu:
        Path("nvidiactl").touch()
    assert main(["optimize", "model.onnx", "-o", "packed.onnx", "--no-verify"]) == 0
    capsys.readouterr()
    wanted = "padfree build packed.onnx -o packed.plan" if has_gpu else "padfree costs packed.onnx -o costs.json"
    assert lines_of(capsys, "inspect", "packed.onnx")["next"] == wanted


def test_build(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_builder(monkeypatch)
    write_folder(Path("small"), modules=[("Pooling", {"pooling_mode": "mean"})])
    command = ["build", "small", "-o", "small.plan", "--max-batch", "4", "--no-timing-cache"]
    actual = lines_of(capsys, *command)
    assert list(actual) == ["packed", "errors", "engine", "answers", "wrote", "next"]
    assert actual["engine"] == "NVIDIA H200, TensorRT 10.6.0; takes 4 sequences of up to 512 tokens, 2048 in all"
    assert actual["wrote"] == "small.plan, small.plan.json and small.plan.tokenizer.json"
    assert actual["next"] == "padfree run small.plan --text 'how warm is it today' -o out.npz"
    assert all(Path(name).is_file() for name in ("small.plan", "small.plan.json", "small.plan.tokenizer.json"))
    assert main([*command, "--verbose"]) == 0
    output = capsys.readouterr().out
    assert all(word in output for word in ("roofline", "layer norm", "plan_bytes"))
    plan = lines_of(capsys, "inspect", "small.plan")
    assert plan["model"] == "small.plan, a TensorRT engine for NVIDIA H200, TensorRT 10.6.0"
    assert plan["gives"] == "sentence_embedding [B, 64], fp16"
    assert plan["next"] == actual["next"]


def test_labels_and_scores_are_shown_as_lines(capsys: Capture) -> None:
    for kind, labels in (("sequence", ("no", "maybe", "yes")), ("token", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))):
        small_folder(Path(kind), kind, labels)
        command = lines_of(capsys, "optimize", kind, "-o", "packed.onnx")["next"]
        assert command == "padfree run packed.onnx --text 'how warm is it today' -o out.jsonl"
        assert main(shlex.split(command)[1:]) == 0
        assert ('"label"' if kind == "sequence" else '"words"') in Path("out.jsonl").read_text(encoding="utf-8")


def test_lines_of_an_ordinary_model_fit_a_terminal(capsys: Capture) -> None:
    for command in (["optimize", "model.onnx", "-o", "packed.onnx", "--precision", "fp16"], ["inspect", "packed.onnx"]):
        assert main(command) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= WIDTH


def test_inspect_says_what_is_saved_at_which_lengths(capsys: Capture) -> None:
    actual = lines_of(capsys, "inspect", "model.onnx", "--max-length", "64", "--mean-length", "16", "--batch", "8")
    ratio, _, rest = actual["saves"].partition(" x ")
    assert float(ratio) > 1
    assert rest == "fewer FLOPs for 8 sequences of up to 64 tokens (mean 16)"
    full = lines_of(capsys, "inspect", "model.onnx", "--max-length", "64", "--mean-length", "64")["saves"]
    assert float(full.partition(" x ")[0]) < float(ratio)


def test_texts_on_the_command_line(capsys: Capture) -> None:
    write_folder(Path("small"), modules=[("Pooling", {"pooling_mode": "mean"})])
    assert main(["optimize", "small", "-o", "packed.onnx"]) == 0
    Path("texts.txt").write_text("a cat\nthe mat\n", encoding="utf-8")
    assert main(["run", "packed.onnx", "--input", "texts.txt", "-o", "file.npz"]) == 0
    assert main(["run", "packed.onnx", "--text", "a cat", "--text", "the mat", "-o", "line.npz"]) == 0
    with np.load("file.npz") as wanted, np.load("line.npz") as actual:
        np.testing.assert_array_equal(actual["sentence_embedding"], wanted["sentence_embedding"])
    assert main(["run", "packed.onnx", "--text", "a", "--text-pair", "b", "--text-pair", "c", "-o", "out.npz"]) == 1
    assert "there are 1 --text and 2 --text-pair" in capsys.readouterr().err
    assert main(["run", "packed.onnx", "--input", "texts.txt", "--text-pair", "c", "-o", "out.npz"]) == 1
    assert "there are 0 --text and 1 --text-pair" in capsys.readouterr().err


def test_no_model_has_more_than_eight_lines(packed_metadata: dict[str, Any]) -> None:
    """What build prints for a model that has something for every line; four more lines are build's own."""
    coverage = {**packed_metadata["coverage"], "notes": ["'types' is read by nothing"], "right_padded_only": True}
    metadata = {
        **packed_metadata,
        "bf16_because": "'x' holds 1e6",
        "kept_float32": {"y": "holds 1e9", "z": "so does z"},
    }
    lines = rewriting_lines(metadata, coverage)
    assert [name for name, _ in lines] == ["note", "packed", "types", "errors"]
    assert len(lines) + len(("engine", "answers", "wrote", "next")) <= MOST_LINES
    assert dict(lines)["note"] == "'types' is read by nothing; requires right-padded masks"


@pytest.mark.slow
def test_verbose_tells_where_the_time_went(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["optimize", "model.onnx", "-o", "packed.onnx", "--precision", "fp16", "-v"]
    assert main(command) == 0
    shown = table_of(capsys.readouterr().out)
    assert list(shown) == ["rewrite", "verify", "half precision", "writing"]
    assert 0 < sum(shown.values()) < 60
    fake_builder(monkeypatch)
    write_folder(Path("small"), modules=[("Pooling", {"pooling_mode": "mean"})])
    assert main(["build", "small", "-o", "small.plan", "--no-timing-cache", "-v"]) == 0
    shown = table_of(capsys.readouterr().out)
    assert {"TensorRT's start", "waiting for the model", "rewrite", "verify", "half precision"} < set(shown)
    assert shown == json.loads(Path("small.plan.json").read_text())["engine"]["build_seconds"]


def table_of(output: str) -> dict[str, float]:
    """Seconds by phase, as --verbose prints them."""
    lines = output[output.index("where the time went") :].splitlines()
    rows = [line.strip("│ ").split("│") for line in lines[: lines.index(next(x for x in lines if x[:1] == "└"))]]
    return {row[0].strip(): float(row[1]) for row in rows[4:]}
