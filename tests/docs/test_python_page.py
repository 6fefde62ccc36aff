# SPDX-License-Identifier: Apache-2.0
"""The Python of docs/guide/python.md runs in the page's order."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import cli

from tests.support.folders import ENCODER, TOKENIZER, WIDTH
from tests.support.pages import page
from tests.support.tour import write_start

EXAMPLES = re.findall(r"^```python\n(.*?)^```", page("python").read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(write_start(tmp_path))
    folder = "sentence-transformers/all-MiniLM-L6-v2"
    assert cli.main(["optimize", folder, "-o", "minilm.onnx", "--no-verify"]) == 0
    shutil.copy(ENCODER, "model.onnx")
    shutil.copy(TOKENIZER, "tokenizer.json")
    capsys.readouterr()
    scope: dict[str, Any] = {}
    assert len(EXAMPLES) == 4
    for source in EXAMPLES:
        if "queries" in source:
            scope["model"] = scope["padfree"].Model("minilm.onnx")  # the page's own model is closed by then
        exec(compile(source, "python.md", "exec"), scope)
    assert scope["vectors"].shape == (2, WIDTH)
    assert capsys.readouterr().out == f"({WIDTH},)\n"
