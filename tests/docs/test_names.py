# SPDX-License-Identifier: Apache-2.0
"""Files and code that the documents name exist, even after moves and renamings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import NOTES, pages

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages()]
INSIDE = [path for path in pages() if path.parent.name == "internals" or path.stem == "architecture"]
NAME = re.compile(r"`([\w/]+\.(?:py|cuh|cu|h|cpp|toml))`")
OF_USERS = {"model.py", "numpy.py", "NAME/1/model.py"}
"""Files that the documents mention and that do not belong to the project."""
DEFINED = re.compile(r"`(\w+)(?:\(\))?` (?:\(|in |of )`([\w/]+\.(?:py|cuh|cu|h|cpp))`")
"""A name in the code and the file that has it."""
OF_MODELOPT = {
    "FP8_DEFAULT_CFG",
    "INT8_DEFAULT_CFG",
    "INT8_SMOOTHQUANT_CFG",
    "INT8_WEIGHT_ONLY_CFG",
    "awq_clip",
    "dq_only",
    "rtn_dq",
}
"""Settings of another tool that the documents mention."""
PAGE = re.compile(r'(?<![\w/])(docs/[\w/.-]+?\.md)(?:, "([^"]+)")?')
"""A page that code refers to, and one of its headings."""
CODE = {".py", ".cu", ".cuh", ".h", ".cpp", ".txt", ".toml", ".cmake"}


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


def text_of(source: str) -> str:
    """The text of one of the project's files; empty if it is not code."""
    path = ROOT / source[1:]
    return path.read_text("utf-8") if path.suffix in CODE and path.is_file() else ""


@pytest.fixture(scope="module")
def identifiers(sources: list[str]) -> set[str]:
    """All words of the code, except for tests of the documents, and all parts of its file names."""
    code = [source for source in sources if not source.startswith("/tests/docs/")]
    words = {word for source in code for word in re.findall(r"\w+", text_of(source))}
    return words | {part for source in sources for part in re.split(r"[/.]", source)}


def code_names(text: str) -> set[str]:
    """Names in code spans that are not ordinary words: those with an underscore or a capital inside."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    words = {word for span in re.findall(r"`([^`]+)`", prose) for word in re.findall(r"[A-Za-z_]\w*", span)}
    return {word for word in words if "_" in word.strip("_") or re.search(r"[a-z][A-Z]", word)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path, sources: list[str]) -> None:
    names = set(NAME.findall(document.read_text("utf-8"))) - OF_USERS
    assert [name for name in names if not any(path.endswith(f"/{name}") for path in sources)] == []


@pytest.mark.parametrize("document", INSIDE, ids=lambda path: path.name)
def test_code_that_pages_about_the_inside_name_exists(document: Path, identifiers: set[str]) -> None:
    assert code_names(document.read_text("utf-8")) - identifiers - OF_MODELOPT == set()


@pytest.mark.parametrize("document", [*DOCUMENTS, *sorted(NOTES.glob("*.md"))], ids=lambda path: path.name)
def test_a_file_has_what_is_said_to_be_in_it(document: Path, sources: list[str]) -> None:
    """For example `launchRowNorm` in `common/row_norm.cuh`."""
    wrong = [
        f"{name} in {file}"
        for name, file in DEFINED.findall(document.read_text("utf-8"))
        if not any(re.search(rf"\b{name}\b", text_of(path)) for path in sources if path.endswith(f"/{file}"))
    ]
    assert wrong == []


def test_pages_and_headings_that_code_names_exist(sources: list[str]) -> None:
    wrong = []
    for source in sources:
        text = re.sub(r"\s*\n\s*(?://|#)?\s*", " ", text_of(source))
        for name, heading in PAGE.findall(text):
            page = ROOT / name
            if not page.is_file() or (heading and f"# {heading}\n" not in page.read_text("utf-8")):
                wrong.append((source, name, heading))
    assert wrong == []


def test_names_of_code_are_recognised(identifiers: set[str]) -> None:
    text = "`launchRowNorm` in `common/row_norm.cuh`, but `a word`, `run()`\n```sh\n`not_this`\n```\n"
    assert code_names(text) == {"launchRowNorm", "row_norm"}
    assert DEFINED.findall(text) == [("launchRowNorm", "common/row_norm.cuh")]
    assert PAGE.findall('(docs/index.md, "Guide")') == [("docs/index.md", "Guide")]
    assert {"launchRowNorm", "row_norm"} <= identifiers
    assert "launch_row_norm_of_" + "nothing" not in identifiers
