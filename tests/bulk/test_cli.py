# SPDX-License-Identifier: Apache-2.0
"""`padfree embed` and `padfree rerank` as commands: what they print, and what they refuse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.cli import bulk, main, make_parser, row_progress
from padfree.contract.installation import install_command
from pyarrow import parquet

from tests.support.bulk_jobs import texts
from tests.support.folders import TOKENIZER, write_folder


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
        (["--engine", "none.plan"], "none.plan: no such file; make one of a model's folder: padfree build"),
        (["--tokenizers", "0"], "--tokenizers 0: allowed: 1 or more; leave it out"),
        (["--shard-rows", "0"], "--shard-rows 0: allowed: 1 or more"),
        (["-o", "nowhere://x"], "nowhere://x: no filesystem for it"),
        (["-o", "-"], "-o -: the result is a folder of parquet files; name one, such as vectors"),
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
    words = [*arguments, *(["--ray", "auto"] if package == "ray" else [])]
    code = (
        f"import sys; sys.modules[{package!r}] = None\nfrom padfree.builder.cli import main\nsys.exit(main({words!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    extra = {"pyarrow": "bulk", "ray": "ray"}[package]
    assert f"padfree embed and rerank need {package}: {install_command(extra)}" in " ".join(done.stderr.split())


def vectors(output: Path) -> np.ndarray:
    """A result's vectors, in the order of the inputs."""
    table = parquet.read_table(output)
    return np.asarray(table.column("embedding").to_pylist())[np.argsort(table.column("id").to_numpy())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, and texts beside it."""
    (tmp_path / "in.txt").write_text("\n".join(texts(6)) + "\n", encoding="utf-8")
    return write_folder(tmp_path / "small", modules=[("Pooling", {"pooling_mode": "mean"})])


def test_a_folder_is_rewritten_and_goes_on_where_it_ended(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The vectors are those of padfree run, and a second rewriting of the folder counts as the same model."""
    source = ["embed", str(folder), "--input", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out")]
    assert main([*source, "--shard-rows", "4"]) == 0
    sorted((tmp_path / "out").glob("part-*"))[1].unlink()
    assert main([*source, "--shard-rows", "4"]) == 0
    assert "6 rows in 2 shards, 1 to do" in capsys.readouterr().err
    assert main(["run", str(folder), "--input", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as results:
        np.testing.assert_allclose(vectors(tmp_path / "out"), results["sentence_embedding"], rtol=1e-5, atol=1e-6)


def test_a_cluster_is_given_a_file_that_its_machines_can_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ["embed", str(folder), "--input", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out"), "--ray", "auto"]
    assert main(source) == 1
    assert f"padfree optimize {folder} -o FILE.onnx" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_the_model_comes_first_and_once(
    arguments: list[str], embedder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = arguments.index("--engine")
    first = ["embed", str(embedder), *arguments[1:at]]
    assert main(first) == 0
    assert main(arguments) == 0  # continues the result of the other spelling
    assert "1 shard, 0 to do" in capsys.readouterr().err
    assert main([*first, "--engine", str(embedder)]) == 1
    assert f"give one model, not {embedder} and {embedder}" in " ".join(capsys.readouterr().err.split())
    assert main(arguments[:at]) == 1
    assert "give one model, not none; name it first" in " ".join(capsys.readouterr().err.split())


def test_a_tokenizer_may_be_a_folder(arguments: list[str], tmp_path: Path) -> None:
    shutil.copy(TOKENIZER, tmp_path / "tokenizer.json")
    assert main([*arguments, "--tokenizer", str(tmp_path)]) == 0


def test_lines_tell_where_it_stands_where_there_is_no_terminal(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_progress, "LINE_S", 0.0)
    assert main([*arguments, "--shard-rows", "4"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if " of 33 rows, " in line]
    assert lines
    assert all(re.fullmatch(r"\d+ of 33 rows, [\d,]+ tokens/s(, \d+:\d\d:\d\d left)?", line) for line in lines), lines


@pytest.mark.parametrize(("count", "threads"), [("1", 8), ("2", 4), ("16", 1)])
def test_a_model_on_the_cpu_gets_every_core(
    arguments: list[str], embedder: Path, count: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "cores", lambda: 8)
    words = make_parser().parse_args([*arguments, "--workers", count])
    assert bulk._Workers(words, embedder).running.cpu_threads == threads
