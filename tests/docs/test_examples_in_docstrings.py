# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings run, wherever there are any."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from padfree.builder.folders import location

from tests.frozen.surface import modules
from tests.support.folders import WIDTH, write_folder

WITH_EXAMPLES = sorted(name for name, path in modules().items() if ">>> " in path.read_text("utf-8"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every repository of the hub a small embedder."""
    chain = {"pooling_mode": "mean", "embedding_dimension": WIDTH}
    folder = write_folder(tmp_path / "model", modules=[("Pooling", chain)])
    monkeypatch.setattr(location, "download", lambda *_: folder)


def test_there_are_some() -> None:
    assert "padfree.builder.model" in WITH_EXAMPLES


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_of_docstrings_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted
    assert not results.failed
