# SPDX-License-Identifier: Apache-2.0
"""All names that Python files define: files, classes, functions, parameters, fields and values."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUNCTION, CLASS, VALUE, FILE = "function", "class", "value", "file"
_PROPERTIES = {"property", "cached_property"}


@dataclass(frozen=True)
class Definition:
    """A name that a file defines.

    Attributes:
        name: as it is written.
        kind: FUNCTION, CLASS, VALUE (of variables, parameters, fields, properties and fixtures) or FILE.
        path: the file, from the repository's root.
        within: the classes and functions around it, joined by dots; "" in a module.
    """

    name: str
    kind: str
    path: str
    within: str = ""

    @property
    def word(self) -> str:
        """The name in lower case, without underscores around it."""
        return self.name.strip("_").lower()

    @property
    def owner(self) -> str:
        """The file and what surrounds the name in it, as `path::within`."""
        return f"{self.path}::{self.within}" if self.within else self.path


def definitions_in(folder: str) -> Iterator[Definition]:
    """The names that the files below a folder define, each once per scope."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        yield Definition(path.stem, FILE, name)
        yield from dict.fromkeys(_definitions(ast.parse(path.read_text("utf-8")), name, ""))


def _definitions(node: ast.AST, path: str, within: str) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        inner = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Definition(child.name, VALUE if _is_value(child) else FUNCTION, path, within)
            inner = f"{within}.{child.name}" if within else child.name
        elif isinstance(child, ast.ClassDef):
            yield Definition(child.name, CLASS, path, within)
            inner = f"{within}.{child.name}" if within else child.name
        elif isinstance(child, ast.arg):
            yield Definition(child.arg, VALUE, path, within)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield Definition(child.id, VALUE, path, within)
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            yield Definition(child.attr, VALUE, path, within)
        elif isinstance(child, ast.MatchAs | ast.MatchStar) and child.name:
            yield Definition(child.name, VALUE, path, within)
        yield from _definitions(child, path, inner)


def _is_value(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is read as a value: a property, or a fixture of pytest."""
    names = {ast.unparse(item).partition("(")[0].rpartition(".")[2] for item in function.decorator_list}
    return bool(names & (_PROPERTIES | {"fixture"}))
