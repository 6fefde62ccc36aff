# SPDX-License-Identifier: Apache-2.0
"""The pages about bulk jobs: their commands and Python run on the CPU, and their numbers are the program's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from padfree.builder import cli

from tests.support.folders import write_folder
from tests.support.pages import page, text

pa = pytest.importorskip("pyarrow")

ROOT = Path(__file__).resolve().parents[2]
PAGE = page("bulk").read_text("utf-8")
TEXT = " ".join(text("bulk", "bulk-jobs").split())


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


COMMANDS = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]


def test_its_commands_and_python_run_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyarrow import parquet

    from tests.support.bulk_jobs import write_lines, write_reranker

    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "all-MiniLM-L6-v2", modules=[("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})])
    (tmp_path / "texts").mkdir()
    lines = [f"a cat and {at} dogs" for at in range(5)]
    parquet.write_table(pa.table({"id": list(range(5)), "text": lines}), tmp_path / "texts" / "a.parquet")
    write_lines(tmp_path / "pairs.jsonl", [{"query": "a cat", "text": line} for line in lines])
    write_reranker(tmp_path / "reranker.onnx")
    ran = []
    for words in COMMANDS:
        if words[0] == "padfree" and not any(word.endswith(".plan") for word in words):
            assert cli.main(words[1:]) == 0, f"{' '.join(words)}: {capsys.readouterr().err}"
            ran.append(words[1])
    assert ran == ["optimize", "embed", "rerank"]
    assert "verified: 5 texts and 0 bad rows, each once" in capsys.readouterr().out
    assert parquet.read_table(tmp_path / "scores").column_names == ["id", "score"]
    (example,) = blocks("python")
    exec(compile(example, "docs/guide/bulk.md", "exec"), {})
    assert capsys.readouterr().out.strip() == re.findall(r"# (.*)", example)[0]


def test_its_numbers_are_the_programs() -> None:
    from padfree.bulk.driver import MOST_LOSSES
    from padfree.bulk.lock import BEAT_S, BEATS
    from padfree.bulk.request import CPU_SHARD_ROWS, MOST_TEXT_BYTES, SHARD_ROWS, TOKEN_SHARD_ROWS
    from padfree.bulk.workers.worker import AHEAD

    arguments = cli.make_parser().parse_args(["embed", "--input", "a", "-o", "b", "--engine", "c"])
    assert arguments.max_text_bytes == MOST_TEXT_BYTES
    assert f"`--max-text-bytes` ({MOST_TEXT_BYTES:,})" in TEXT
    assert f"A shard has {SHARD_ROWS:,} rows ({CPU_SHARD_ROWS:,} for `.onnx` files, " in TEXT
    assert f"{TOKEN_SHARD_ROWS:,} for models with one row per token" in TEXT
    assert f"every {BEAT_S:.0f} seconds. A second driver watches it for {BEATS * BEAT_S:.0f} seconds" in TEXT
    assert (AHEAD, "at most five shards in progress" in TEXT) == (5, True)
    assert (MOST_LOSSES, "If eight workers die" in TEXT) == (8, True)


def test_the_suffixes_and_options_exist() -> None:
    from padfree.contract.data_files import ROW_KINDS, SUFFIXES

    table = PAGE.split("| suffix |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\.\w+)`", table)) == {suffix for suffix, kind in SUFFIXES.items() if kind in ROW_KINDS}
    parsers = cli.make_parser()._subparsers
    assert parsers is not None
    choices = parsers._group_actions[0].choices
    known = {option for name in ("embed", "rerank", "build") for option in choices[name]._option_string_actions}  # type: ignore[index]
    shown = "\n".join(line for line in PAGE.splitlines() if "benchmarks.bulk" not in line)
    assert set(re.findall(r"--[a-z][a-z-]+", shown)) <= known
