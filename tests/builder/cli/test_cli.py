# SPDX-License-Identifier: Apache-2.0
"""The `padfree` command on rewritten models: results, exit codes, and errors of one paragraph without a traceback."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree import builder
from padfree.builder import cli
from padfree.builder.cli import main

ModelWriter = Callable[..., Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PADFREE_DEBUG", raising=False)
    yield
    logging.getLogger("padfree").handlers.clear()


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    path = tmp_path / "batch.jsonl"
    path.write_text('{"input_ids": [1, 2, 3]}\n{"input_ids": []}\n{"input_ids": [4]}\n')
    return path


def refusal(capsys: Capture, *arguments: object) -> str:
    """Runs a command that must fail and returns its error, after checking its form."""
    assert main([str(argument) for argument in arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("padfree: error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


def test_the_command_waits_for_no_import_that_it_does_not_use() -> None:
    code = "import sys, padfree.builder.cli as cli; cli.make_parser(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_with_path())
    assert not {"numpy", "onnx", "onnxruntime", "tensorrt", "padfree.onnx_tools", "padfree.runtime"} & {
        *done.stdout.split()
    }


def _with_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_the_package_has_what_it_names() -> None:
    for name in builder.__all__:
        assert getattr(builder, name)
    with pytest.raises(AttributeError, match=r"module 'padfree\.builder' has no attribute 'missing'"):
        builder.missing  # noqa: B018


def test_run_writes_results(packed_model: ModelWriter, batch: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.npz"
    assert main(["run", str(packed_model()), "--input", str(batch), "-o", str(out)]) == 0
    with np.load(out) as file:
        assert file["hidden"][:, 0].tolist() == [1, 2, 3, 4]
        assert file["seq_lens"].tolist() == [3, 0, 1]
        assert file["lengths"].tolist() == [[3], [0], [1]]
    assert "3 sequences, 4 tokens" in capsys.readouterr().out


def test_run_reads_grids_for_padded_models(padded_model: ModelWriter, tmp_path: Path) -> None:
    source, out = tmp_path / "batch.npz", tmp_path / "out.npz"
    np.savez(source, input_ids=np.array([[5, 6], [7, 0]]), attention_mask=np.array([[1, 1], [1, 0]]))
    assert main(["run", str(padded_model()), "--input", str(source), "-o", str(out)]) == 0
    with np.load(out) as file:
        assert file["hidden"][:, 0].tolist() == [1005, 1006, 1007]


def test_bad_requests_leave_no_file(packed_model: ModelWriter, tmp_path: Path, capsys: Capture) -> None:
    source, out = tmp_path / "batch.jsonl", tmp_path / "out.npz"
    source.write_text("[1, 2]\n[3, 200]\n")
    error = refusal(capsys, "run", packed_model(), "--input", source, "-o", out)
    assert "'input_ids' value 200 at sequence 1, position 1: allowed 0..99" in error
    assert not out.exists()


def test_a_full_disk(packed_model: ModelWriter, batch: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    model = packed_model()
    monkeypatch.setattr(np, "savez", full)
    out = batch.with_name("out.npz")
    assert "No space left on device" in refusal(capsys, "run", model, "--input", batch, "-o", out)
    assert sorted(path.name for path in batch.parent.iterdir()) == ["batch.jsonl", "packed.onnx"]


def test_a_missing_folder_is_named_first(packed_model: ModelWriter, batch: Path, capsys: Capture) -> None:
    out = batch.parent / "nowhere" / "out.npz"
    assert "mkdir -p" in refusal(capsys, "run", packed_model(), "--input", batch, "-o", out)


def test_a_plan_without_metadata(batch: Path, tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "model.plan"
    plan.write_bytes(b"plan")
    for command in (["inspect", plan], ["run", plan, "--input", batch, "-o", tmp_path / "out.npz"]):
        assert "its metadata model.plan.json is missing" in refusal(capsys, *command)


def test_inspect_shows_everything(packed_model: ModelWriter, capsys: Capture) -> None:
    assert main(["inspect", str(packed_model()), "--verbose"]) == 0
    output = capsys.readouterr().out
    for part in ("packed", "token_type_ids", "0..99", "per_sequence", "50.0 %", "causal mask", "reads a masked slot"):
        assert part in output


def test_inspect_prints_json(packed_model: ModelWriter, packed_metadata: dict[str, Any], capsys: Capture) -> None:
    path = packed_model()
    assert main(["inspect", "--json", str(path)]) == 0
    coverage = {**packed_metadata["coverage"], "costs": None}
    wanted = {**packed_metadata, "file": str(path), "kind": "packed", "coverage": coverage}
    assert json.loads(capsys.readouterr().out) == wanted


def test_inspect_of_a_plan(packed_metadata: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    import hashlib

    plan = tmp_path / "model.plan"
    plan.write_bytes(b"plan")
    engine = {
        "tensorrt": "10.6.0",
        "gpu_name": "NVIDIA H200",
        "compute_capability": "9.0",
        "profile": {"min_tokens": 1, "opt_tokens": 9, "max_tokens": 16, "max_batch": 2, "max_seq_len": 8},
        "plan_bytes": 4,
        "plan_sha256": hashlib.sha256(b"plan").hexdigest(),
        "plugin_layers": {"PadfreePool": 1},
    }
    raw = {**packed_metadata, "plugins": {"PadfreePool": 1}, "engine": engine}
    plan.with_name("model.plan.json").write_text(json.dumps(raw))
    assert main(["inspect", str(plan), "-v"]) == 0
    output = capsys.readouterr().out
    assert "NVIDIA H200" in output
    assert "PadfreePool" in output
    plan.write_bytes(b"pla")
    assert "3 bytes, its metadata says 4" in refusal(capsys, "inspect", plan)


def test_doctor_names_a_next_step_for_everything_that_is_not_ok(capsys: Capture) -> None:
    main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert {finding["name"] for finding in report["findings"]} >= {"gpu", "driver", "tensorrt", "library", "headers"}
    assert all(finding["next_step"] for finding in report["findings"] if finding["state"] != "ok")
    assert report["works"]["run rewritten models on the CPU"]


def test_doctor_fails_when_something_required_is_missing(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from padfree.builder import doctor
    from padfree.builder.cli.doctor import REQUIRABLE

    def pretend(state: doctor.FindingState) -> None:
        names = REQUIRABLE
        findings = [doctor.Finding(name, "ok", "fine") for name in names]
        findings[1] = doctor.Finding("gpu", state, "no GPU", "buy one")
        monkeypatch.setattr(doctor, "diagnose", lambda: findings)

    pretend("missing")
    assert main(["doctor"]) == 0
    assert "gpu: buy one" in capsys.readouterr().out
    assert main(["doctor", "--require", "tensorrt"]) == 0
    assert main(["doctor", "--require", "tensorrt, gpu"]) == 1
    assert main(["doctor", "--require", "tokens"]) == 0
    pretend("problem")
    assert main(["doctor"]) == 1
    capsys.readouterr()
    assert main(["doctor", "--require", "cuda"]) == 2
    assert "unknown part cuda, allowed: python, gpu" in capsys.readouterr().err
    assert "answers were compared when it was written" in refusal(capsys, "doctor", "--plan", "packed.onnx")


def test_usage_errors_are_exit_code_2(capsys: Capture) -> None:
    assert main([]) == 2
    assert main(["optimize", "model.onnx"]) == 2
    assert main(["build", "m.onnx", "-o", "m.plan", "--timing-cache", "x", "--no-timing-cache"]) == 2
    capsys.readouterr()
    assert main(["serve", "m.plan", "--port", "high"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "padfree serve: error: argument --port: invalid int value: 'high'",
        "padfree serve --help lists all arguments",
    ]


def test_help_and_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("padfree ")
    for module in cli.SUBCOMMANDS:
        assert main([module.__name__.rpartition(".")[2], "--help"]) == 0
        assert "usage: padfree" in capsys.readouterr().out


def test_unexpected_errors_say_how_to_see_more(
    packed_model: ModelWriter, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("broken\nin two lines")

    monkeypatch.setattr(cli.inspect, "print_summary", fail)
    error = refusal(capsys, "inspect", packed_model())
    assert "RuntimeError: broken in two lines; run again with PADFREE_DEBUG=1" in error
    monkeypatch.setenv("PADFREE_DEBUG", "1")
    with pytest.raises(RuntimeError, match="broken"):
        main(["inspect", str(packed_model())])


def test_interrupts_have_their_own_exit_code(
    packed_model: ModelWriter, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.inspect, "print_summary", interrupt)
    assert main(["inspect", str(packed_model())]) == 130
    assert "interrupted" in capsys.readouterr().err
