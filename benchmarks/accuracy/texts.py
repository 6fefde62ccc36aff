# SPDX-License-Identifier: Apache-2.0
"""Texts that every machine has: paragraphs of this repository's documents, and Python's own documentation strings."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def texts_at_hand(count: int) -> list[str]:
    """`count` different texts of very different lengths, half of them paragraphs if there are enough of these."""
    paragraphs, strings = (list(dict.fromkeys(texts)) for texts in (_paragraphs(), _documentation_strings()))
    chosen = _spread(paragraphs, min(len(paragraphs), count // 2))
    return [*chosen, *_spread(strings, count - len(chosen))]


def _spread(texts: list[str], count: int) -> list[str]:
    """At most `count` of the texts, at regular intervals."""
    step = max(1.0, len(texts) / max(1, count))
    return [texts[int(at * step)] for at in range(min(count, len(texts)))]


def _paragraphs() -> Iterator[str]:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for paragraph in path.read_text("utf-8").split("\n\n"):
            text = " ".join(paragraph.split())
            if text and text[0].isalpha():  # no tables, no code
                yield text


@cache
def _documentation_strings() -> tuple[str, ...]:
    """Documentation strings of Python's own modules; reading them takes seconds."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return tuple(text for path in paths for text in _strings_of(path))


def documentation_of(package: str) -> list[str]:
    """The different documentation strings of an installed package."""
    result = find_spec(package)
    if result is None or result.origin is None:
        raise ModuleNotFoundError(f"there is no package '{package}'; pip install {package}")
    files = sorted(Path(result.origin).parent.rglob("*.py"))
    return list(dict.fromkeys(text for path in files for text in _strings_of(path)))


def _strings_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text
