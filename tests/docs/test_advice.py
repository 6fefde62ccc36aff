# SPDX-License-Identifier: Apache-2.0
"""Commands and options that messages name exist: every text in the code is checked against the parser."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frozen.surface import modules
from tests.support.advice import COMMAND, OPTION, commands, problems

WRITES_OTHERS = {
    "padfree.builder.cli.triton",
    "padfree.builder.compare.saved",
    "padfree.builder.triton.image",
    "padfree.serving.http.docs",
}
"""Modules whose texts also hold other programs' command lines or style sheets: there only padfree's commands count."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and texts of a module, without docstrings; what is inserted into a text at run time appears as VALUE."""
    tree = ast.parse(path.read_text("utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    skipped = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


ADVICE = {
    name: found
    for name, path in modules().items()
    if (
        found := [
            item for item in texts(path) if " " in item[1] and (COMMAND.search(item[1]) or OPTION.search(item[1]))
        ]
    )
}


def test_there_is_advice() -> None:
    assert len(ADVICE) > 60
    assert sum(map(len, ADVICE.values())) > 300


@pytest.mark.parametrize("module", ADVICE)
def test_what_is_advised_exists(module: str) -> None:
    found = [(line, problem) for line, text in ADVICE[module] for problem in problems(text)]
    if module in WRITES_OTHERS:
        found = [(line, problem) for line, problem in found if not problem.startswith("no command")]
    assert not found


def test_what_is_missing_is_found() -> None:
    assert problems("rewrite it: padfree optimize m.onnx -o p.onnx --strict") == []
    assert problems("run padfree optimize m.onnx -o p.onnx --task x") == [
        "padfree optimize has no --task",
        "padfree optimize m.onnx -o p.onnx --task x is not taken",
    ]
    assert problems("pass --no-such-option") == ["no command: --no-such-option"]
    assert problems("pass --calibrate", "run") == ["run: --calibrate"]
    assert list(commands("padfree build m.onnx -o m.plan, or padfree doctor")) == [
        ("build", ["m.onnx", "-o", "m.plan"]),
        ("doctor", []),
    ]
