# SPDX-License-Identifier: Apache-2.0
"""docs/guide/folders.md: its commands and its Python run, on a folder with random weights."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import cli
from padfree.builder.folders.head import POOLINGS
from padfree.builder.folders.modules import known_modules

from tests.support.folders import DEMO_DATA, ENCODER, WIDTH, write_folder
from tests.support.pages import page

PAGE = page("folders").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_page_does_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    modules = [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})]
    write_folder(tmp_path / "all-MiniLM-L6-v2", modules=modules, max_seq_length=256)
    (tmp_path / "model").mkdir()
    shutil.copy(ENCODER, tmp_path / "model" / "model.onnx")
    shutil.copy(DEMO_DATA / "texts.txt", tmp_path)
    commands = [shlex.split(line)[1:] for text in blocks("sh") for line in text.splitlines()]
    ran = [words[0] for words in commands if not any(word.endswith(".plan") for word in words) and cli.main(words) == 0]
    assert ran == ["inspect", "optimize", "run", "optimize"]
    with np.load("vectors.npz") as results:
        assert results["sentence_embedding"].shape == (40, WIDTH)
    scope: dict[str, Any] = {}
    for source in blocks("python"):
        exec(compile(source, "folders.md", "exec"), scope)
    assert scope["vectors"].shape == (2, WIDTH)
    assert scope["source"].folder.text.max_length == 256


def test_modules_and_ways_of_pooling_are_all_named() -> None:
    assert [
        name for name in (*known_modules(), *POOLINGS) if name not in ("MLMTransformer", "Dropout") and name not in PAGE
    ] == []
