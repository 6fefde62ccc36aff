# SPDX-License-Identifier: Apache-2.0
"""Tables fit a terminal of 80 columns: no word is broken, no line wraps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from padfree.builder.cli import console, demo
from padfree.builder.demo.demo import DEMO_DATA, Comparison

from tests.support.folders import write_folder
from tests.support.terminal import padfree_in_terminal

COLUMNS = 80
MODEL, TOKENIZER, TEXTS = (str(DEMO_DATA / name) for name in ("bert_tiny.onnx", "tokenizer.json", "texts.txt"))
FRAME = "┏┃┡│└"


def check_tables(text: str) -> None:
    """Checks that no line of a table is wider than 80 columns and that no word of a heading is broken."""
    lines = [line for line in text.splitlines() if line and line[0] in FRAME]
    assert lines
    assert max(map(len, lines)) <= COLUMNS, max(lines, key=len)
    headers = [line for line in lines if line[0] == "┃"]
    words = {word for line in headers for word in re.findall(r"[^┃ ]+", line)}
    assert words <= WORDS | {word for word in words if word.isdigit()}, words - WORDS


COLUMN_WORDS = (
    "bert-tiny bert-base output layout shape of the first batch mask sequences tokens padded lengths rows absolute",
    "relative cosine part packed share original rewritten FLOPs these input role type values fact value operator pass",
    "count replaced missed reason node texts in a as they come sorted by length text phase seconds holds where time",
)
WORDS = {word for line in COLUMN_WORDS for word in line.split()}
"""Words of the columns' headings."""


def test_the_demo_with_engines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = Comparison("bert-tiny", "onnxruntime fp32", 40, 12345, 123456, 1.2e-5, 12345.67, 1234.56)
    base = Comparison("bert-base", "onnxruntime fp32", 10, 12345, 123456, 1.2e-5, 12345.67, 1234.56)
    engine = Comparison("bert-base", "TensorRT fp16", 40, 12345, 123456, 1.2e-3, 123.45, 12.34)
    monkeypatch.setattr(console, "PLAIN_WIDTH", COLUMNS)
    demo._print_comparisons([tiny, base, engine])
    shown = capsys.readouterr().out
    check_tables(shown)
    for word in ("onnxruntime fp32", "TensorRT fp16", "largest error", "12345.67 ms", "10.00 times"):
        assert word in shown


@pytest.mark.parametrize(
    "command", ["optimize", *(pytest.param(name, marks=pytest.mark.slow) for name in ("inspect", "compare", "run"))]
)
def test_commands_in_a_terminal(command: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "encoder")
    arguments = {
        "inspect": [str(folder), "--texts", TEXTS, "--verbose"],
        "compare": [MODEL, "--max-seq-len", "20", "--bisect"],
        "run": [str(folder), "--text", "a day", "-o", str(tmp_path / "out.npz")],
        "optimize": [MODEL, "-o", str(tmp_path / "out.onnx"), "--verbose"],
    }[command]
    shown = padfree_in_terminal([command, *arguments])
    assert shown.code == 0, shown.text
    check_tables(shown.text.replace("\r", "\n"))
