# SPDX-License-Identifier: Apache-2.0
"""The Python and the commands of docs/internals/batching.md run, in the page's order, on the CPU."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import cli
from padfree.builder.demo.demo import DEMO_DATA

from tests.support.pages import page

PAGE = page("batching")
SHORTER = {
    "costs": ["--lengths", "16,128", "--batches", "1,4", "--repeats", "1"],
    "simulate": ["--seconds", "0.1"],
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the small model, rewritten for both interfaces."""
    shutil.copy(DEMO_DATA / "bert_tiny.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    for interface in ("packed", "padded"):
        options = ["--interface", interface, "-o", f"{interface}.onnx", "--no-verify"]
        assert cli.main(["optimize", "model.onnx", *options]) == 0
    return tmp_path


def test_python(folder: Path) -> None:
    assert (folder / "packed.onnx").exists()
    scope: dict[str, Any] = {}
    examples = blocks("python")
    assert len(examples) == 6
    for source in examples:
        exec(compile(source.replace("model.plan", "packed.onnx"), str(PAGE), "exec"), scope)
    assert [answer["last_hidden_state"].shape[0] for answer in scope["answers"]] == [3, 2, 4]
    assert scope["costs"].run_seconds([30, 100, 7]) > 0
    scope["session"].close()


def test_commands(folder: Path) -> None:
    assert cli.main(["costs", "padded.onnx", "-o", "padded.json", *SHORTER["costs"]]) == 0
    words = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    commands = [line[1:] for line in words if line[0] == "padfree"]
    assert [command[0] for command in commands] == ["costs", "simulate", "simulate", "simulate"]
    for command in commands:
        if "--plot" in command:
            pytest.importorskip("matplotlib")
        arguments = [word.replace("model.plan", "packed.onnx") for word in command]
        assert cli.main([*arguments, *SHORTER[command[0]]]) == 0
    records = [json.loads(line) for line in (folder / "policies.jsonl").read_text("utf-8").splitlines()]
    assert len(records) == 3 * 6
    assert (folder / "policies.svg").exists()
