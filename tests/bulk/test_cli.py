# SPDX-License-Identifier: Apache-2.0
"""`padfree embed` and `padfree rerank` as commands: what they print, and how they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from padfree.builder.cli import main
from padfree.contract.installation import install_command

from tests.support.bulk_jobs import texts


@pytest.fixture
def arguments(tmp_path: Path, embedder: Path) -> list[str]:
    (tmp_path / "in.txt").write_text(
        "\n".join([*texts(30), "word " * 300, "", "x" * (1 << 18) + "x"]) + "\n", encoding="utf-8"
    )
    return ["embed", "--input", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out"), "--engine", str(embedder)]


def test_what_is_printed_and_kept(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--shard-rows", "16", "--verify"]) == 0
    shown = capsys.readouterr()
    assert "33 rows in 3 shards, 3 to do" in shown.err
    assert "rows without a result: 1 (too large)" in shown.out
    assert "texts that were longer than the model takes, and were cut: 1" in shown.out
    assert "32 texts, " in shown.out
    assert "3 files in" in shown.out
    assert "verified: 32 texts and 1 bad row, each once" in shown.out
    assert "CPU worker 0" in shown.out
    report = json.loads((tmp_path / "out" / "_report.json").read_text())
    assert (report["texts"], report["cut"], report["bad"], report["shards"]) == (32, 1, {"too large": 1}, 3)
    assert report["tokens_a_second"] == pytest.approx(report["tokens_now"] / report["seconds"])
    assert 0 <= report["workers"][0]["idle"] < 1
    assert main([*arguments, "--shard-rows", "16"]) == 0
    assert "3 shards, 0 to do" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "_report.json").read_text()) == report


def test_a_result_without_rows_is_a_failure(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_bytes(b"\xff\n\xff\n")
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert "2 rows in 1 shard, 1 to do" in shown.err
    assert "rows without a result: 2 (not UTF-8)" in shown.out
    assert "no row has a result" in shown.out
    assert "0 texts, 0 tokens, 1 file in" in shown.out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--workers", "0"], "--workers 0: allowed: 1 or more"),
        (["--engine", "none.plan"], "--engine none.plan: no such file; make one of a model's folder: padfree build"),
        (["--tokenizers", "0"], "tokenizers is 0, allowed: 1 or more; leave it out"),
        (["--shard-rows", "0"], "--shard-rows 0: allowed: 1 or more"),
        (["-o", "nowhere://x"], "nowhere://x: no filesystem for it"),
    ],
)
def test_refusals(
    arguments: list[str], changed: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, *changed]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_plans_have_a_process_a_gpu(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.plan").write_bytes(b"no plan")
    assert main([*arguments, "--engine", str(tmp_path / "model.plan"), "--workers", "2"]) == 1
    assert "--workers 2: allowed: 1 or more, for .onnx files and clusters; choose GPUs with --gpus" in " ".join(
        capsys.readouterr().err.split()
    )


def test_what_is_no_plan_is_named_before_a_gpu(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, wanted in (
        ("model.plan", "its metadata model.plan.json is missing"),
        ("model.safetensors", "model.safetensors: is a part of a model's folder; give the folder"),
    ):
        (tmp_path / name).write_bytes(b"no plan")
        (tmp_path / "config.json").write_text("{}", encoding="utf-8")
        assert main([*arguments, "--engine", str(tmp_path / name)]) == 1
        assert wanted in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("package", ["pyarrow", "ray"])
def test_what_is_not_installed_is_named(arguments: list[str], package: str) -> None:
    given = [*arguments, *(["--ray", "auto"] if package == "ray" else [])]
    code = (
        f"import sys; sys.modules[{package!r}] = None\nfrom padfree.builder.cli import main\nsys.exit(main({given!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    extra = {"pyarrow": "bulk", "ray": "ray"}[package]
    assert f"this needs {package}: {install_command(extra)}" in " ".join(done.stderr.split())
