# SPDX-License-Identifier: Apache-2.0
"""Pages can be read in one go: their length, their paragraphs' length, their openings, and their place in the index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import NOTES, ROOT, page, pages

WORDS = 1500
"""The most words on a page, not counting tables and code."""
PARAGRAPH = 90
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "benchmarks" / "results").rglob("*.md")),
]
RATE = re.compile(
    r"\b(?:[mu]s|seconds?|clocks?|bytes|texts?|tokens|rows?|requests|registers|threads|sequences|blocks?|keys|scores?|"
    r"launches|times|once|one|numbers?|entr(?:y|ies)|scales?|vectors?|files?|lines?|[0-9]+(?: [mu]s)?) an? "
    r"(?:second|clock|batch|text|token|sequence|layer|row|column|thread|block|step|request|call|process|lane|warpgroup|"
    r"multiprocessor|rank|GPU|GEMM|head|stage|connection|word|tensor|line|card|file|model)\b"
)
KERNEL_PAGES = [
    "attention-hopper",
    "attention-windows",
    "attention-disentangled",
    "attention-general",
    "linear",
    "linear-e4m3",
    "linear-general",
    "packing",
    "norms",
    "embedding",
    "pooling",
    "rotary",
]
IDS = [path.relative_to(ROOT / "docs").as_posix() for path in pages()]


def blocks(path: Path) -> Iterator[str]:
    """The blocks of a page between empty lines: headings, paragraphs and lists, without tables, code and comments."""
    text = re.sub(r"^( *)```.*?^\1```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)):
        lines = [line for line in block.splitlines() if not line.lstrip().startswith("|")]
        if lines and not all(line.startswith("    ") for line in lines):
            yield "\n".join(lines).strip()


def prose(block: str) -> list[str]:
    """The words of a block; a link counts as its text."""
    return re.sub(r"\]\([^)]*\)", "]", block).split()


@pytest.mark.parametrize("path", pages(), ids=IDS)
def test_a_page_is_short(path: Path) -> None:
    words = sum(len(prose(block)) for block in blocks(path))
    assert words <= WORDS


@pytest.mark.parametrize("path", pages(), ids=IDS)
def test_paragraphs_are_short(path: Path) -> None:
    paragraphs = [item for block in blocks(path) for item in re.split(r"\n(?= *(?:[-*]|\d+\.) )", block)]
    long = [block.splitlines()[0] for block in paragraphs if len(prose(block)) > PARAGRAPH]
    assert long == []


@pytest.mark.parametrize("path", pages(), ids=IDS)
def test_a_page_opens_with_a_heading_and_a_sentence(path: Path) -> None:
    first, second = list(blocks(path))[:2]
    assert re.fullmatch(r"# .+", first)
    assert re.match(r"(?!#|[-*] )\S", second), second


@pytest.mark.parametrize("path", pages(), ids=IDS)
def test_an_opening_says_what_the_page_is_for_and_for_whom(path: Path) -> None:
    opening = []
    for block in list(blocks(path))[1:]:
        if block.startswith("#"):
            break
        opening.append(block)
    words = " ".join(" ".join(opening).split())
    assert re.search(r"\bthis page\b", words, re.IGNORECASE), words
    assert re.search(r"\bfor (people|those|everyone|operators|programs|Python programs)\b", words), words


@pytest.mark.parametrize("path", [*DOCUMENTS, *pages()], ids=[*(path.name for path in DOCUMENTS), *IDS])
def test_rates_are_per_something(path: Path) -> None:
    """`tokens per second`, not `tokens a second`."""
    lines = path.read_text("utf-8").splitlines()
    assert [line for line in lines if RATE.search(line)] == []


@pytest.mark.parametrize("path", pages(), ids=IDS)
def test_the_index_has_every_page(path: Path) -> None:
    index = ROOT / "docs" / "index.md"
    links = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)", index.read_text("utf-8"))}
    assert path == index or path in links


@pytest.mark.parametrize("name", KERNEL_PAGES)
def test_a_kernel_has_a_page_of_one_shape(name: str) -> None:
    """It says why there is a kernel, and has a picture, figures, limits, and what was rejected."""
    text = page(name).read_text("utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0].startswith("Why ")
    assert "```text\n" in text or "![" in text
    assert any("igures" in heading for heading in headings)
    assert headings[-1].startswith(("Limits, ", "Figures, limits, "))
    assert re.search(r"\]\(tried-and-rejected\.md#", text)


def test_no_two_pages_have_one_name() -> None:
    """`tests.support.pages.page` finds a page by its name."""
    names = [path.stem for path in pages()]
    assert sorted(names) == sorted(set(names))


def test_docs_have_pages_a_dozen_essays_and_pictures() -> None:
    """There are no patches and no archives: git keeps them."""
    files = [path for path in (ROOT / "docs").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".md", ".svg"}
    assert len(list(NOTES.glob("*.md"))) <= 12
