# SPDX-License-Identifier: Apache-2.0
"""Commands and options that messages name exist: every text in the code is checked against the parser."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.frozen.surface import modules, tree
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
    nodes = list(ast.walk(tree(path)))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in nodes if isinstance(node, documented)]
    skipped = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def is_advice(text: str) -> bool:
    return " " in text and bool(COMMAND.search(text) or OPTION.search(text))


@cache
def advice() -> dict[str, list[tuple[int, str]]]:
    """The lines and texts of each module that advise something. Not while tests are collected: that takes seconds."""
    advising = {name: path for name, path in modules().items() if is_advice(path.read_text("utf-8"))}
    found = {name: [item for item in texts(path) if is_advice(item[1])] for name, path in advising.items()}
    return {name: items for name, items in found.items() if items}


def room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_there_is_advice() -> None:
    assert len(advice()) > 60
    assert sum(map(len, advice().values())) > 300


@pytest.mark.parametrize("name", sorted(set(map(room, modules()))))
def test_what_is_advised_exists(name: str) -> None:
    advised = [(module, line, text) for module, items in advice().items() for line, text in items]
    found = [
        (module, line, fault) for module, line, text in advised if room(module) == name for fault in problems(text)
    ]
    assert not [
        (module, line, fault)
        for module, line, fault in found
        if module not in WRITES_OTHERS or not fault.startswith("no command")
    ]


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
