# SPDX-License-Identifier: Apache-2.0
"""Functions of the plugins are short enough to read in one go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
SOURCES = sorted(path for ending in ("cu", "cuh", "cpp", "h") for path in PLUGINS.rglob(f"*.{ending}"))
LINES = 80
"""The most lines of a function, from its opening brace to its closing one."""
IGNORED = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'')
HEAD = re.compile(r"\)\s*(?:const|noexcept|override|final|mutable|->[\w:<>&*, ]+|\s)*$")
"""What comes before the brace of a function's body; a constructor's initialisers end the same way."""


def functions(text: str) -> Iterator[tuple[int, int]]:
    """The line of every function's opening brace, from 1, and its number of lines; loops and lambdas count, too."""
    code = IGNORED.sub("", text)
    opened: list[int] = []
    for brace in re.finditer(r"[{}]", code):
        if brace[0] == "{":
            opened.append(brace.start())
            continue
        begin = opened.pop()
        if HEAD.search(code[max(0, begin - 200) : begin]):
            first, last = (code.count("\n", 0, at) + 1 for at in (begin, brace.start()))
            yield first, last - first + 1


def test_functions_are_found() -> None:
    text = 'int f(int x) {\n  if (x) {\n    return 1;  // }\n  }\n  return g("{");\n}\n\nstruct S {\n  int y;\n};\n'
    assert list(functions(text)) == [(2, 3), (1, 6)]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.relative_to(PLUGINS).as_posix())
def test_functions_are_short(source: Path) -> None:
    long = {first: lines for first, lines in functions(source.read_text("utf-8")) if lines > LINES}
    assert not long, f"{source}: functions of more than {LINES} lines begin at {long}; divide them"
