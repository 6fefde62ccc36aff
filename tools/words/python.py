# SPDX-License-Identifier: Apache-2.0
"""Renames definitions in Python: locals, names in modules, and members.

All rows of a table are looked up in the unchanged files and applied at once, so that rows use the old names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import libcst as cst

from .index import Index
from .modules import Project
from .names import Free, binds, members_of, names_below, parameters
from .replacing import Edits, replace_names
from .table import Rename, TableError


class Renaming:
    """The changes that rows make to a project's files.

    Args:
        project: the files.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self._edits: dict[Path, Edits] = defaultdict(Edits)
        self._indices: dict[Path, Index] = {}

    def add(self, row: Rename) -> None:
        """Looks a row up and notes its changes.

        Raises:
            TableError: there is no such definition, or the new name is in use already.
        """
        path = self.project.root / row.path
        if not path.is_file():
            raise TableError(f"{row}: there is no {row.path}")
        {"local": self._local, "global": self._global, "member": self._member}[row.kind](row, path)

    def apply(self) -> list[Path]:
        """Changes the project's trees; returns the changed files."""
        changed = sorted(path for path, edits in self._edits.items() if edits)
        for path in changed:
            self.project.replace(path, replace_names(self.project.tree(path), self._edits[path]))
        return changed

    def index(self, path: Path) -> Index:
        """The index of a file."""
        if path not in self._indices:
            self._indices[path] = Index(self.project.tree(path))
        return self._indices[path]

    def _having(self, *patterns: str) -> Iterator[Path]:
        for path in self.project.files.values():
            text = self.project.text(path)
            if all(re.search(pattern, text) for pattern in patterns):
                yield path

    def _local(self, row: Rename, path: Path) -> None:
        functions = [
            node
            for node in self.index(path).definitions.get(row.within, [])
            if isinstance(node, cst.FunctionDef) and _binds_inside(node, row.old)
        ]
        if not functions:
            raise TableError(f"{row}: {row.old} is not a name of {row.within} itself")
        edits = self._edits[path]
        for function in functions:
            names = names_below(function)
            if any(name.value == row.new for name in names):
                raise TableError(f"{row}: {row.within} has a {row.new} already")
            edits.rename((name for name in names if name.value == row.old and name is not function.name), row.new)
            inside = Index(cst.Module([function]))
            for inner in (node for nodes in inside.definitions.values() for node in nodes):
                if isinstance(inner, cst.FunctionDef) and row.old in parameters(inner):
                    edits.rename(inside.keywords(inner.name.value, row.old), row.new)
            edits.mention(inside.docstrings, row)
            if row.old in parameters(function):
                self._keywords(row, row.within.split(".")[-2 if row.within.endswith("__init__") else -1])

    def _keywords(self, row: Rename, callee: str) -> None:
        for path in self._having(rf"\b{callee}\b", rf"\b{row.old}="):
            if callee.startswith("_") and path != self.project.root / row.path:
                continue  # there it is another function of that name
            self._edits[path].rename(self.index(path).keywords(callee, row.old), row.new)

    def _global(self, row: Rename, path: Path) -> None:
        defining = self.project.name_of(path)
        if not _free(self.project.tree(path), row.old):
            raise TableError(f"{row}: {row.path} has no {row.old}")
        homes, waiting = {defining}, [defining]  # modules that have it: they define it, or import it under its name
        while waiting:
            home = waiting.pop()
            for reader in self._having(rf"\b{row.old}\b", rf"\b{home.rpartition('.')[2]}\b|from \.+ import"):
                if self._import(row, home, reader) and self.project.name_of(reader) not in homes:
                    homes.add(self.project.name_of(reader))
                    waiting.append(self.project.name_of(reader))
        for home in sorted(homes):
            self._rename_in(row, self.project.files[home])

    def _rename_in(self, row: Rename, path: Path) -> None:
        """Renames it in a module that has the name: plain names, `__all__`, comments and docstrings."""
        tree, edits = self.project.tree(path), self._edits[path]
        if _free(tree, row.new):
            raise TableError(f"{row}: {path.relative_to(self.project.root)} has a {row.new} already")
        edits.rename(_free(tree, row.old), row.new)
        edits.mention(_exports(tree, row.old), row, whole=True)
        edits.mention(self.index(path).docstrings, row)
        edits.comments.append(row)

    def _import(self, row: Rename, home: str, path: Path) -> bool:
        """Renames it where a file imports it or reads it from the module; returns whether the file then has it."""
        index, edits, has_it = self.index(path), self._edits[path], False
        package, _, last = home.rpartition(".")
        module_names = set()
        for node in index.imports:
            if isinstance(node.names, cst.ImportStar):
                continue
            module = self.project.resolve(path, node)
            for alias in node.names:
                if module == home and alias.evaluated_name == row.old and isinstance(alias.name, cst.Name):
                    edits.rename([alias.name], row.new)
                    has_it = has_it or alias.asname is None
                elif module == package and alias.evaluated_name == last:
                    module_names.add(alias.evaluated_alias or last)
        for plain in index.modules:
            module_names |= {alias.evaluated_alias or home for alias in plain.names if alias.evaluated_name == home}
        edits.rename((name for base, name in index.attributes.get(row.old, ()) if base in module_names), row.new)
        strings = (item for item in _named_attributes(index, module_names) if item.evaluated_value == row.old)
        edits.mention(strings, row, whole=True)
        edits.patch(index.strings, f"{home}.{row.old}", f"{home}.{row.new}")
        return has_it

    def _member(self, row: Rename, path: Path) -> None:
        classes = [node for node in self.index(path).definitions.get(row.within, []) if isinstance(node, cst.ClassDef)]
        if not classes:
            raise TableError(f"{row}: there is no class {row.within}")
        edits = self._edits[path]
        for node in classes:
            if list(members_of(node, row.new)):
                raise TableError(f"{row}: {row.within} has a {row.new} already")
            edits.rename(members_of(node, row.old), row.new)
            edits.mention(Index(cst.Module([node])).docstrings, row)
        scope = [self.project.root / part for part in row.scope]
        count = 0
        for reader in self._having(rf"\.{row.old}\b|\b{row.old}="):
            if scope and not any(reader.is_relative_to(part) for part in scope):
                continue
            index = self.index(reader)
            attributes = [name for _, name in index.attributes.get(row.old, ())]
            keywords = [index.keywords(callee, row.old) for callee in (row.within.split(".")[-1], "replace", "cls")]
            self._edits[reader].rename([*attributes, *(name for names in keywords for name in names)], row.new)
            count += len(attributes)
        if not count and not any(list(members_of(node, row.old)) for node in classes):
            raise TableError(f"{row}: there is no {row.old}")


def _binds_inside(function: cst.FunctionDef, name: str) -> bool:
    """Whether a function, or one inside it, binds the name."""
    inner = [node for nodes in Index(cst.Module([function])).definitions.values() for node in nodes]
    return any(isinstance(node, cst.FunctionDef) and binds(node, name) for node in inner)


def _free(tree: cst.Module, name: str) -> list[cst.Name]:
    finder = Free(name)
    tree.visit(finder)
    return [item for item in finder.names if item.value == name]


def _named_attributes(index: Index, bases: set[str]) -> Iterator[cst.SimpleString]:
    """The strings "name" in calls such as setattr(module, "name", ...)."""
    for calls in index.calls.values() if bases else ():
        for call in calls:
            values = [arg.value for arg in call.args[:2]]
            if len(values) < 2 or not isinstance(values[0], cst.Name) or values[0].value not in bases:
                continue
            if isinstance(values[1], cst.SimpleString):
                yield values[1]


def _exports(tree: cst.Module, name: str) -> Iterable[cst.SimpleString]:
    """The entry for a name in `__all__`."""
    for statement in tree.body:
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Assign):
            assign = statement.body[0]
            target = assign.targets[0].target
            if isinstance(target, cst.Name) and target.value == "__all__":
                strings = Index(cst.Module([statement])).strings
                yield from (item for item in strings if item.evaluated_value == name)
