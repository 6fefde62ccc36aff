# SPDX-License-Identifier: Apache-2.0
"""Pages about the rewriter: their programs print what the pages show, and the tests that they name exist."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from padfree.onnx_tools.importing.importing import GRAPH_STEPS, MESSAGE_STEPS, ORIGINAL_STEPS

from tests.support.pages import ROOT, page

PAGES = ("life-of-a-model", "importing", "passes")
PROGRAM = re.compile(r"```python\n(.*?)```.*?```text\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"pytest (\S+) -k (\w+)")
PROGRAMS = [pytest.param(*shown, id=name) for name in PAGES for shown in PROGRAM.findall(page(name).read_text("utf-8"))]
COMMANDS = [command for name in PAGES for command in COMMAND.findall(page(name).read_text("utf-8"))]


def test_pages_have_programs_and_commands() -> None:
    assert len(PROGRAMS) >= 2
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_programs_print_what_the_page_says(program: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed.strip()


@pytest.mark.parametrize(("file", "keyword"), COMMANDS)
def test_command(file: str, keyword: str) -> None:
    assert re.search(rf"def test_\w*{keyword}", (ROOT / file).read_text("utf-8"))


def test_the_page_lists_the_steps_of_importing_in_their_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", page("importing").read_text("utf-8"), re.MULTILINE)
    assert rows == [step.run.__name__ for step in (*ORIGINAL_STEPS, *MESSAGE_STEPS, *GRAPH_STEPS)]
