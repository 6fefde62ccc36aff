# SPDX-License-Identifier: Apache-2.0
"""Renames files and folders within their parent folder, and adapts imports, includes and build files."""

from __future__ import annotations

import re
from pathlib import Path

import libcst as cst

from . import cpp
from .index import Index
from .modules import Project
from .names import Free
from .replacing import Edits, replace_names
from .table import Rename, TableError

BUILD_FILES = ("CMakeLists.txt", "cmake")


def apply(row: Rename, project: Project) -> list[Path]:
    """Renames a file or folder, and rewrites everything that names it; other edits must have been written before.

    Raises:
        TableError: it does not exist, the new one does, or it would leave its folder.
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
            destination = new / path.relative_to(old) if old.is_dir() else new
            changed += cpp.rename_includes(str(path.relative_to(root)), str(destination.relative_to(root)), root)
        changed += _build_files(row, root)
    old.rename(new)
    project.__dict__.pop("files", None)
    return [new if path == old else path for path in changed]


def _build_files(row: Rename, root: Path) -> list[Path]:
    """Adapts CMake's files, which name sources by their paths; returns those that changed."""
    starts = [root / name for name in BUILD_FILES]
    paths = [path for start in starts for path in ([start] if start.is_file() else sorted(start.rglob("*.cmake")))]
    changed = []
    for path in paths:
        text = path.read_text("utf-8")
        text_after = re.sub(rf"(?<![\w]){re.escape(row.old)}(?!\w)", row.new, text)
        if text_after != text:
            path.write_text(text_after, "utf-8")
            changed.append(path)
    return changed


def _reimport(project: Project, path: Path, old: str, new: str) -> bool:
    """Makes a file import a module by its new name; returns whether it used the old one."""
    package, _, last = old.rpartition(".")
    if not re.search(rf"\b{last}\b", project.text(path)):
        return False
    tree, edits, new_last = project.tree(path), Edits(), new.rpartition(".")[2]
    index = Index(tree)
    for node in index.imports:
        module = project.resolve(path, node)
        if module == old or module.startswith(f"{old}."):
            edits.rename(_component(node.module, module.count(".") - old.count(".")), new_last)
        elif module == package and not isinstance(node.names, cst.ImportStar):
            aliases = [alias for alias in node.names if alias.evaluated_name == last]
            edits.rename((alias.name for alias in aliases if isinstance(alias.name, cst.Name)), new_last)
            if any(alias.asname is None for alias in aliases):
                finder = Free(last)
                tree.visit(finder)
                edits.rename((item for item in finder.names if item.value == last), new_last)
    edits.rename((name for base, name in index.attributes.get(last, ()) if base == package), new_last)
    edits.patch(index.strings, old, new)
    if edits:
        project.replace(path, replace_names(tree, edits))
    return bool(edits)


def _component(node: cst.BaseExpression | None, from_end: int) -> list[cst.Name]:
    """One name of a.b.c, counted from the end."""
    while from_end and isinstance(node, cst.Attribute):
        node, from_end = node.value, from_end - 1
    if isinstance(node, cst.Attribute):
        return [node.attr]
    return [node] if isinstance(node, cst.Name) and not from_end else []
