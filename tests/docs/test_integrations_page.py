# SPDX-License-Identifier: Apache-2.0
"""docs/guide/integrations.md: its Python runs, on folders with random weights and on the CPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import cli

from tests.integrations.conftest import packed, saved
from tests.support.pages import page

PAGE = page("integrations").read_text("utf-8")

__all__ = ["packed", "saved"]


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.needs_torch
def test_the_page_does_what_it_shows(saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers")
    monkeypatch.chdir(tmp_path)
    saved().rename(tmp_path / "all-MiniLM-L6-v2")
    for name, options in (("minilm", ()), ("rows", ("--pooling", "none"))):
        assert cli.main(["optimize", "all-MiniLM-L6-v2", "-o", f"{name}.onnx", *options]) == 0
    scope: dict[str, Any] = {}
    for source in blocks():
        exec(compile(source.replace("minilm.plan", "minilm.onnx"), "integrations.md", "exec"), scope)
    assert scope["vectors"].shape == (2, 64)
    assert scope["hidden"].shape == (2, 3, 64)
    assert not scope["hidden"][1, 2].any()
    assert scope["y"].shape == (10, 8, 64)
