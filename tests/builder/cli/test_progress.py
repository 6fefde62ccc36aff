# SPDX-License-Identifier: Apache-2.0
"""`run`, `optimize` and `build` show their progress: bars on a terminal, lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.cli import main, row_progress
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine import progress
from padfree.runtime import chunks, texts

from tests.support.fake_builder import fake_builder
from tests.support.terminal import padfree_in_terminal

Capture = pytest.CaptureFixture[str]
EXPORTED = str(DEMO_DATA / "bert_tiny.onnx")
REWRITING = ["rewriting the graph", "comparing it with the original in onnxruntime"]
TEXTS = 40


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "packed.onnx"
    assert main(["optimize", EXPORTED, "-o", str(path), "-q"]) == 0
    return path


def run_arguments(packed: Path, folder: Path, output: str = "out.npz") -> list[str]:
    few = (DEMO_DATA / "texts.txt").read_text(encoding="utf-8").splitlines()[:TEXTS]
    (folder / "texts.txt").write_text("\n".join(few) + "\n", encoding="utf-8")
    where = ["--input", str(folder / "texts.txt"), "--tokenizer", str(DEMO_DATA / "tokenizer.json"), "--truncate"]
    return ["run", str(packed), *where, "-o", str(folder / output)]


def test_optimize_names_its_stages(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", math.inf)
    command = ["optimize", EXPORTED, "-o", str(tmp_path / "out.onnx"), "--precision", "fp16"]
    assert main(command) == 0
    stages = [*REWRITING, "converting it to half precision", "writing the file"]
    assert capsys.readouterr().err.splitlines() == stages
    assert main([*command, "--quiet"]) == 0
    assert not capsys.readouterr().err


def test_build_names_its_stages(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_builder(monkeypatch)
    monkeypatch.setattr(progress, "LINE_S", math.inf)
    assert main(["build", EXPORTED, "-o", str(tmp_path / "out.plan"), "--precision", "fp32"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "starting TensorRT",
        "preparing the model",
        *REWRITING,
        "building the engine",
        "waiting for onnxruntime's answers",
        "comparing the engine's answers with onnxruntime's",
    ]
    assert main(["build", EXPORTED, "-o", str(tmp_path / "out.plan"), "--precision", "fp32", "--quiet"]) == 0
    assert not capsys.readouterr().err


def test_long_stages_say_how_far_they_are(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    assert main(["optimize", EXPORTED, "-o", str(tmp_path / "out.onnx")]) == 0
    lines = capsys.readouterr().err.splitlines()
    count = int(lines[1].rpartition(" of ")[2])
    assert count > 10
    assert lines[1 : count + 1] == [f"rewriting the graph: {done} of {count}" for done in range(1, count + 1)]
    batches = [line for line in lines if re.fullmatch(r"comparing it .*: \d+ of \d+", line)]
    assert len(batches) >= 3


@pytest.mark.slow
def test_a_terminal_gets_bars(tmp_path: Path) -> None:
    shown = padfree_in_terminal(["optimize", EXPORTED, "-o", str(tmp_path / "out.onnx")])
    assert shown.code == 0
    assert any(re.search(r"rewriting the graph +━.* \d:\d\d:\d\d", line) for line in shown.lines)
    assert all(len(line) <= 80 for line in shown.lines[:-4])
    quiet = padfree_in_terminal(["optimize", EXPORTED, "-o", str(tmp_path / "out.onnx"), "--quiet"])
    assert [line.split(":")[0] for line in quiet.lines] == ["packed", "errors", "wrote", "next"]


@pytest.mark.parametrize("output", ["out.npz", "out.jsonl"])
def test_run_tells_how_many_texts_are_tokens(
    packed: Path, tmp_path: Path, output: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a million lines take a minute before the model runs."""
    monkeypatch.setattr(row_progress, "LINE_S", 0.0)
    monkeypatch.setattr(texts, "PORTION", TEXTS // 4)
    assert main(run_arguments(packed, tmp_path, output)) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "texts tokenised" in line]
    assert [int(line.split()[0]) for line in lines][-1] == 3 * (TEXTS // 4), lines
    assert all(
        re.fullmatch(rf"\d+ of {TEXTS} texts tokenised, [\d,]+ tokens/s(, \d:\d\d:\d\d left)?", line) for line in lines
    )


@pytest.mark.parametrize("output", ["out.npz", "out.jsonl"])
def test_run_tells_of_every_batch(
    packed: Path, tmp_path: Path, output: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = run_arguments(packed, tmp_path, output)
    monkeypatch.setattr(row_progress, "LINE_S", 60.0)
    assert main(command) == 0
    (tmp_path / output).rename(tmp_path / f"whole-{output}")
    assert not capsys.readouterr().err  # it took no LINE_S
    monkeypatch.setattr(row_progress, "LINE_S", 0.0)
    monkeypatch.setattr(chunks, "CPU_CHUNK_TOKENS", 200)
    assert main(command) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "tokenised" not in line]
    message = [re.fullmatch(rf"(\d+) of {TEXTS} rows, [\d,]+ tokens/s(, \d:\d\d:\d\d left)?", line) for line in lines]
    assert len(message) > 5, lines
    rows = [int(match[1]) for match in message if match is not None]
    assert len(rows) == len(message), lines
    assert rows == sorted(rows)
    if output == "out.npz":  # chunks change no answer
        with np.load(tmp_path / output) as parts, np.load(tmp_path / f"whole-{output}") as whole:
            assert set(parts) == set(whole)
            for name in whole:
                np.testing.assert_allclose(parts[name], whole[name], atol=1e-5)
    assert main([*command, "--quiet"]) == 0
    assert not capsys.readouterr().err
