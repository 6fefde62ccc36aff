# SPDX-License-Identifier: Apache-2.0
"""The commands of the README and of the guide to ONNX files, for a program to run, and the files they start from."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from .folders import ROOT, write_folder

README = ROOT / "README.md"
ONNX_FILES = ROOT / "docs" / "guide" / "onnx-files.md"
TOUR = (README, ONNX_FILES)
"""Pages whose commands run in this order in one folder."""
OPERATORS = {"&&", "|", "||", ";"}
TEXTS = 5


def blocks(document: Path, language: str) -> list[str]:
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a script, without variables set before them; lines that continue are joined."""
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word not in OPERATORS:
                words.append(word)
                continue
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []


def write_start(folder: Path) -> Path:
    """Writes what the tour starts from: small models in place of the README's public ones, and a few texts."""
    data = ROOT / "builder" / "demo" / "data"
    modules = [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})]
    write_folder(folder / "sentence-transformers" / "all-MiniLM-L6-v2", modules=modules)
    (folder / "model").mkdir()
    shutil.copy(data / "bert_tiny.onnx", folder / "model" / "model.onnx")
    shutil.copy(data / "tokenizer.json", folder / "model")
    lines = (data / "texts.txt").read_text("utf-8").splitlines()
    (folder / "texts.txt").write_text("\n".join(sorted(lines, key=len)[:TEXTS]) + "\n", encoding="utf-8")
    return folder


def python_example() -> str:
    """The guide's Python about token ids, with ids that the small model has: its vocabulary has 930, BERT's 30,522."""
    (example,) = blocks(ONNX_FILES, "python")
    return re.sub(r"\b\d{4,}\b", "59", example)
