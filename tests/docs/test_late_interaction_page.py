# SPDX-License-Identifier: Apache-2.0
"""docs/guide/late-interaction.md: its commands and its Python run, on a folder with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import cli

from tests.support.late_models import WIDTH, write_late_model
from tests.support.pages import page
from tests.support.tour import blocks, commands

PAGE = page("late-interaction")


def test_the_page_does_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    write_late_model("colbert", tmp_path / "colbert-ir" / "colbertv2.0")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("it rained\n", encoding="utf-8")
    (tmp_path / "pairs.jsonl").write_text('{"query": "rain", "text": "it rained"}\n', encoding="utf-8")
    ran = []
    for words in commands("\n".join(blocks(PAGE, "sh"))):
        if words[0] == "padfree" and not any(word.endswith(".plan") for word in words):
            assert cli.main(words[1:]) == 0
            ran.append(words[1])
    assert ran == ["optimize", "rerank", "run", "run", "embed"]
    scope: dict[str, Any] = {}
    for source in blocks(PAGE, "python"):
        exec(compile(source, PAGE.name, "exec"), scope)
    with scope["model"]:
        assert len(scope["best"]) == 1
    assert [rows.shape[1] for rows in (*scope["queries"], *scope["documents"])] == [WIDTH] * 3
    vectors = {
        name: json.loads((tmp_path / f"{name}.jsonl").read_text("utf-8"))["embeddings"]
        for name in ("queries", "documents")
    }
    assert len(vectors["queries"]) > len(vectors["documents"]) > 0
