# SPDX-License-Identifier: Apache-2.0
"""The project's Python files by their dotted names, parsed once and written at the end."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import libcst as cst

from .table import ROOT

PACKAGES = {
    "package/padfree": "padfree",
    "onnx_tools": "padfree.onnx_tools",
    "builder": "padfree.builder",
    "runtime": "padfree.runtime",
    "contract": "padfree.contract",
    "serving": "padfree.serving",
    "training": "padfree.training",
    "bulk": "padfree.bulk",
    "integrations/sentence_transformers": "padfree.sentence_transformers",
    "integrations/torch": "padfree.torch",
    "tests": "tests",
    "benchmarks": "benchmarks",
    "examples": "examples",
    "tools": "tools",
}
"""Folders with Python files, and the packages that they are."""


class Project:
    """All Python files below a root, and the texts of other files.

    Args:
        root: the root of the source tree.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._trees: dict[Path, cst.Module] = {}
        self._texts: dict[Path, str] = {}
        self._changed: set[Path] = set()

    @cached_property
    def files(self) -> dict[str, Path]:
        """Files by the dotted names of their modules."""
        return {self.name_of(path): path for folder in PACKAGES for path in sorted((self.root / folder).rglob("*.py"))}

    def name_of(self, path: Path) -> str:
        """The dotted name of a file's module."""
        inside = path.relative_to(self.root)
        for folder, package in PACKAGES.items():
            if inside.is_relative_to(folder):
                parts = inside.relative_to(folder).with_suffix("").parts
                return ".".join([package, *parts]).removesuffix(".__init__")
        raise ValueError(f"{path}: in none of {', '.join(PACKAGES)}")

    def text(self, path: Path) -> str:
        """A file's text, including the changes so far."""
        if path not in self._texts:
            self._texts[path] = path.read_text("utf-8")
        return self._texts[path]

    def tree(self, path: Path) -> cst.Module:
        """A file's syntax tree."""
        if path not in self._trees:
            self._trees[path] = cst.parse_module(self.text(path))
        return self._trees[path]

    def replace(self, path: Path, tree: cst.Module) -> None:
        """Keeps a changed tree."""
        self._trees[path], self._texts[path] = tree, tree.code
        self._changed.add(path)

    def replace_text(self, path: Path, text: str) -> None:
        """Keeps the changed text of a file that is not Python."""
        self._texts[path] = text
        self._changed.add(path)

    def write(self) -> list[Path]:
        """Writes the files that were changed, and returns them."""
        for path in self._changed:
            path.write_text(self._texts[path], "utf-8")
        changed, self._changed = sorted(self._changed), set()
        return changed

    def resolve(self, path: Path, node: cst.ImportFrom) -> str:
        """The full dotted name of the module that a statement imports from."""
        module = dotted_name(node.module) if node.module is not None else ""
        level = len(node.relative)
        if not level:
            return module
        parts = self.name_of(path).split(".")
        if path.name == "__init__.py":
            parts.append("")
        return ".".join([*parts[: len(parts) - level], *([module] if module else [])])


def dotted_name(node: cst.BaseExpression) -> str:
    """A name or an attribute as text: a.b.c."""
    if isinstance(node, cst.Attribute):
        return f"{dotted_name(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""
