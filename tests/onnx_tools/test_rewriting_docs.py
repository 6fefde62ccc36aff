# SPDX-License-Identifier: Apache-2.0
"""docs/internals/rewriting.md: its program prints what the page shows, and the test that it names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import page

ROOT = Path(__file__).resolve().parents[2]
PAGE = page("rewriting").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_program() -> None:
    program, shown = blocks("python")[0], blocks("text")[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown.strip()


@pytest.mark.parametrize("block", blocks("sh"))
def test_command(block: str) -> None:
    file, keyword = re.findall(r"pytest (\S+) -k (\w+)", block)[0]
    assert re.search(rf"def test_\w*{keyword}", (ROOT / file).read_text())
