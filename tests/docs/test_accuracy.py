# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of docs/guide/accuracy.md in order, in a folder with an exported model, its tokenizer and texts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from padfree.builder.cli import main
from padfree.builder.compare.tolerances import TOLERANCES
from padfree.builder.demo.demo import DEMO_DATA

from tests.support.pages import text

DOCUMENT = text("accuracy", "polygraphy")
COMMANDS = re.findall(r"^padfree .*$", "\n".join(re.findall(r"^```sh\n(.*?)^```", DOCUMENT, re.M | re.S)), re.M)
POLYGRAPHY = [line for line in DOCUMENT.splitlines() if line.startswith("polygraphy run")]


@pytest.mark.slow
def test_the_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(DEMO_DATA / "bert_tiny.onnx", tmp_path / "model.onnx")
    shutil.copy(DEMO_DATA / "tokenizer.json", tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join((DEMO_DATA / "texts.txt").read_text("utf-8").splitlines()[:5]))
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) == 6
    for command in COMMANDS:
        assert main(shlex.split(command)[1:]) == 0, command
    assert (tmp_path / "report.html").stat().st_size > 10_000
    script = tmp_path / "comparison" / "commands.sh"
    assert "sh comparison/commands.sh" in DOCUMENT.splitlines()
    assert run_script(script) == 0
    written = script.read_text("utf-8").replace(f"{tmp_path}/", "")
    assert len(POLYGRAPHY) == 3
    for line in POLYGRAPHY:
        assert line in written


def run_script(script: Path) -> int:
    """Runs commands.sh with the polygraphy that is installed next to python."""
    paths = os.pathsep.join(path for path in sys.path if path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(["sh", str(script)], env={**os.environ, "PATH": path, "PYTHONPATH": paths}).returncode


def test_the_tolerances_are_those_of_the_program() -> None:
    for name, item in TOLERANCES.items():
        row = next(line for line in DOCUMENT.splitlines() if line.startswith(f"| {name} |"))
        shown = [float(cell) for cell in row.split("|")[2:4]]
        assert shown == [item.absolute, item.relative]
