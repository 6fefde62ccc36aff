# SPDX-License-Identifier: Apache-2.0
"""Files that the documents name are there, wherever they have moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import pages

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages()]
NAME = re.compile(r"`([\w/]+\.(?:py|cuh|cu|h|cpp|toml))`")
OF_USERS = {"model.py", "numpy.py", "NAME/1/model.py"}
"""Files that the documents speak of and that are not the project's."""


@pytest.fixture(scope="module")
def sources() -> list[str]:
    """The project's files."""
    folders = (
        "onnx_tools",
        "builder",
        "runtime",
        "serving",
        "bulk",
        "contract",
        "plugins",
        "include",
        "integrations",
        "package",
        "tools",
        "training",
        "tests",
    )
    results = [path for name in (*folders, "benchmarks", "cmake", "examples") for path in (ROOT / name).rglob("*")]
    return [f"/{path.relative_to(ROOT).as_posix()}" for path in [*results, *ROOT.glob("*")]]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path, sources: list[str]) -> None:
    names = set(NAME.findall(document.read_text("utf-8"))) - OF_USERS
    assert [name for name in names if not any(path.endswith(f"/{name}") for path in sources)] == []
