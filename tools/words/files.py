# SPDX-License-Identifier: Apache-2.0
"""Renames files and folders of one parent: imports, includes and build files follow."""

from __future__ import annotations

import re
from pathlib import Path

import libcst as cst

from . import cpp
from .modules import Project, dotted
from .names import Free, Replacing
from .python import imports_of, strings_of
from .table import Rename, TableError

BUILD_FILES = ("CMakeLists.txt", "cmake")


def apply(row: Rename, project: Project) -> list[Path]:
    """Moves a file or folder, and writes everything that names it; other edits must have been written.

    Raises:
        TableError: it is not there, the new one is, or it would leave its folder.
    """
    root = project.root
    old, new = root / row.old, root / row.new
    if not old.exists() or new.exists():
        raise TableError(f"{row}: there is no {row.old}, or there is a {row.new}")
    if old.parent != new.parent:
        raise TableError(f"{row}: goes into another folder; that is no renaming")
    changed = []
    if old.suffix == ".py" or (old.is_dir() and any(old.rglob("*.py"))):
        before, after = project.name_of(old), project.name_of(new)
        changed += [path for path in list(project.files.values()) if _reimport(project, path, before, after)]
        project.write()
    else:
        inside = [old] if old.is_file() else [path for path in sorted(old.rglob("*")) if path.is_file()]
        for path in inside:
            moved = new / path.relative_to(old) if old.is_dir() else new
            changed += cpp.rename_includes(str(path.relative_to(root)), str(moved.relative_to(root)), root)
        changed += _build_files(row, root)
    old.rename(new)
    project.__dict__.pop("files", None)
    return [new if path == old else path for path in changed]


def _build_files(row: Rename, root: Path) -> list[Path]:
    """CMake's files, which name sources by their paths."""
    starts = [root / name for name in BUILD_FILES]
    paths = [path for start in starts for path in ([start] if start.is_file() else sorted(start.rglob("*.cmake")))]
    changed = []
    for path in paths:
        text = path.read_text("utf-8")
        written = re.sub(rf"(?<![\w]){re.escape(row.old)}(?!\w)", row.new, text)
        if written != text:
            path.write_text(written, "utf-8")
            changed.append(path)
    return changed


def _reimport(project: Project, path: Path, old: str, new: str) -> bool:
    """Makes a file import a module by its new name; whether it did by the old one."""
    package, _, last = old.rpartition(".")
    if not re.search(rf"\b{last}\b", project.text(path)):
        return False
    tree, renamed = project.tree(path), new.rpartition(".")[2]
    names: list[cst.Name] = []
    statements = imports_of(tree)
    for node in statements.found:
        module = project.resolve(path, node)
        if module == old or module.startswith(f"{old}."):
            names += _component(node.module, module.count(".") - old.count("."))
        elif module == package and not isinstance(node.names, cst.ImportStar):
            aliases = [alias for alias in node.names if alias.evaluated_name == last]
            names += [alias.name for alias in aliases if isinstance(alias.name, cst.Name)]
            if any(alias.asname is None for alias in aliases):
                finder = Free(last)
                tree.visit(finder)
                names += [item for item in finder.names if item.value == last]
    chains = _Chains(old)
    tree.visit(chains)
    names += chains.found
    pattern = re.compile(rf"(?<![\w.]){re.escape(old)}(?!\w)")
    strings = {id(item): pattern.sub(new, item.value) for item in strings_of(tree) if pattern.search(item.value)}
    if not names and not strings:
        return False
    project.replace(path, tree.visit(Replacing(names, renamed, strings, None)))
    return True


def _component(node: cst.BaseExpression | None, from_end: int) -> list[cst.Name]:
    """One name of a.b.c, counted from the end."""
    while from_end and isinstance(node, cst.Attribute):
        node, from_end = node.value, from_end - 1
    if isinstance(node, cst.Attribute):
        return [node.attr]
    return [node] if isinstance(node, cst.Name) and not from_end else []


class _Chains(cst.CSTVisitor):
    """Where a.b.old is written out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[cst.Name] = []

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """Of any length."""
        if dotted(node) == self.name:
            self.found.append(node.attr)
