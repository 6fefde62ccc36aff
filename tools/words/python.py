# SPDX-License-Identifier: Apache-2.0
"""Renames definitions of Python: locals, names of modules, members, and modules themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from .modules import Project, dotted
from .names import Free, Replacing, binds, definitions, members_of, mentions, names_below, parameters
from .table import Rename, TableError


@dataclass
class Edits:
    """What is to be changed in one file."""

    names: list[cst.Name] = field(default_factory=list)
    strings: dict[int, str] = field(default_factory=dict)


def apply(row: Rename, project: Project) -> list[Path]:
    """Renames one definition in the project's trees; returns the files that changed.

    Raises:
        TableError: there is no such definition, or the new name means something already.
    """
    kinds: dict[str, Callable[[Rename, Project], dict[Path, Edits]]] = {
        "local": _local,
        "global": _global,
        "member": _member,
    }
    edits = {path: edit for path, edit in kinds[row.kind](row, project).items() if edit.names or edit.strings}
    if not edits:
        raise TableError(f"{row}: there is no {row.old}")
    for path, edit in edits.items():
        comment = None if row.kind == "local" else (lambda text: mentions(text, row.old, row.new))
        project.replace(path, project.tree(path).visit(Replacing(edit.names, row.new, edit.strings, comment)))
    return sorted(edits)


def _having(project: Project, *words: str) -> Iterator[tuple[str, Path]]:
    for module, path in project.files.items():
        if all(re.search(rf"\b{word}\b", project.text(path)) for word in words):
            yield module, path


def _local(row: Rename, project: Project) -> dict[Path, Edits]:
    path = project.root / row.path
    if not path.is_file():
        raise TableError(f"{row}: there is no {row.path}")
    functions = definitions(project.tree(path)).get(row.within, [])
    found: dict[Path, Edits] = {}
    for function in functions:
        names = names_below(function)
        if any(name.value == row.new for name in names):
            raise TableError(f"{row}: {row.within} has a {row.new} already")
        if isinstance(function, cst.ClassDef) or not _owns(function, row.old):
            raise TableError(f"{row}: {row.old} is not a name of {row.within} itself")
        edit = found.setdefault(path, Edits())
        edit.names += [name for name in names if name.value == row.old and name is not function.name]
        edit.names += _keywords(function, _with_parameter(function, row.old), row.old)
        edit.strings |= _docstrings(function, row)
        if row.old in parameters(function):
            called = row.within.split(".")[-2] if row.within.endswith("__init__") else row.within.split(".")[-1]
            for _, other in _having(project, called, row.old):
                found.setdefault(other, Edits()).names += _keywords(project.tree(other), {called}, row.old)
    return {at: Edits(_unique(edit.names), edit.strings) for at, edit in found.items()}


def _owns(function: cst.FunctionDef, name: str) -> bool:
    """Whether a function, or one inside of it that nothing else encloses, binds the name."""
    inner = [node for nodes in definitions(cst.Module([function])).values() for node in nodes]
    return any(isinstance(node, cst.FunctionDef) and binds(node, name) for node in inner)


def _with_parameter(function: cst.FunctionDef, name: str) -> set[str]:
    inner = [node for nodes in definitions(cst.Module([function])).values() for node in nodes]
    return {node.name.value for node in inner if isinstance(node, cst.FunctionDef) and name in parameters(node)}


class _Keywords(cst.CSTVisitor):
    def __init__(self, called: set[str], name: str) -> None:
        self.called, self.name = called, name
        self.found: list[cst.Name] = []

    def visit_Call(self, node: cst.Call) -> None:
        """f(name=...), x.f(name=...), partial(f, name=...)."""
        callee = dotted(node.func).split(".")[-1]
        if callee == "partial" and node.args:
            callee = dotted(node.args[0].value).split(".")[-1]
        if callee in self.called:
            self.found += [arg.keyword for arg in node.args if arg.keyword and arg.keyword.value == self.name]

    def visit_MatchClass(self, node: cst.MatchClass) -> None:
        """case F(name=...)."""
        if dotted(node.cls).split(".")[-1] in self.called:
            self.found += [item.key for item in node.kwds if item.key.value == self.name]


def _keywords(tree: cst.CSTNode, called: set[str], name: str) -> list[cst.Name]:
    finder = _Keywords(called, name)
    tree.visit(finder)
    return finder.found


def _docstrings(node: cst.CSTNode, row: Rename) -> dict[int, str]:
    """Docstrings below a node that mention the old name, by identity, with the new one."""
    finder = _Docstrings()
    node.visit(finder)
    changed = {id(item): mentions(item.value, row.old, row.new) for item in finder.found}
    return {at: text for at, text in changed.items() if text not in {item.value for item in finder.found}}


class _Docstrings(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: list[cst.SimpleString] = []

    def visit_Expr(self, node: cst.Expr) -> None:
        """A string by itself."""
        if isinstance(node.value, cst.SimpleString):
            self.found.append(node.value)


def _global(row: Rename, project: Project) -> dict[Path, Edits]:
    defining = project.name_of(project.root / row.path)
    if defining not in project.files:
        raise TableError(f"{row}: there is no {row.path}")
    if not _free(project.tree(project.files[defining]), row.old):
        raise TableError(f"{row}: {row.path} has no {row.old}")
    edits: dict[Path, Edits] = {}
    homes, waiting = {defining}, [defining]  # modules that have it: they define it, or import it under its name
    while waiting:
        home = waiting.pop()
        for module, path in _having(project, row.old):
            edit = edits.setdefault(path, Edits())
            aliases = list(_imports(project, path, home, row.old))
            edit.names += [alias.name for alias in aliases if isinstance(alias.name, cst.Name)]
            edit.names += _attributes(project, path, home, row.old)
            edit.strings |= _dotted_strings(project.tree(path), f"{home}.{row.old}", f"{home}.{row.new}")
            edit.strings |= _named_attributes(project, path, home, row)
            if any(alias.asname is None for alias in aliases) and module not in homes:
                homes.add(module)
                waiting.append(module)
    for home in homes:
        path, tree = project.files[home], project.tree(project.files[home])
        if _free(tree, row.new):
            raise TableError(f"{row}: {path.relative_to(project.root)} has a {row.new} already")
        edit = edits.setdefault(path, Edits())
        edit.names += _free(tree, row.old)
        edit.strings |= _exports(tree, row)
    for path, edit in edits.items():
        if edit.names or edit.strings:
            edit.strings |= _docstrings(project.tree(path), row)
    return {path: Edits(_unique(edit.names), edit.strings) for path, edit in edits.items()}


def _free(tree: cst.Module, name: str) -> list[cst.Name]:
    finder = Free(name)
    tree.visit(finder)
    return [item for item in finder.names if item.value == name]


class _Imports(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: list[cst.ImportFrom] = []
        self.plain: list[cst.Import] = []

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        """from a import b."""
        self.found.append(node)

    def visit_Import(self, node: cst.Import) -> None:
        """import a.b."""
        self.plain.append(node)


def imports_of(tree: cst.Module) -> _Imports:
    """All import statements of a file."""
    finder = _Imports()
    tree.visit(finder)
    return finder


def _imports(project: Project, path: Path, module: str, name: str) -> Iterator[cst.ImportAlias]:
    for node in imports_of(project.tree(path)).found:
        if not isinstance(node.names, cst.ImportStar) and project.resolve(path, node) == module:
            yield from (alias for alias in node.names if alias.evaluated_name == name)


def module_names(project: Project, path: Path, module: str) -> set[str]:
    """What a file calls a module: names it was imported as, and dotted names."""
    names = set()
    package, _, last = module.rpartition(".")
    for node in imports_of(project.tree(path)).found:
        if not isinstance(node.names, cst.ImportStar) and project.resolve(path, node) == package:
            names |= {alias.evaluated_alias or last for alias in node.names if alias.evaluated_name == last}
    for plain in imports_of(project.tree(path)).plain:
        for alias in plain.names:
            if alias.evaluated_name == module:
                names.add(alias.evaluated_alias or module)
    return names


class _Attributes(cst.CSTVisitor):
    def __init__(self, bases: set[str] | None, name: str) -> None:
        self.bases, self.name = bases, name
        self.found: list[cst.Name] = []

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """base.name; without bases: of anything."""
        if node.attr.value == self.name and (self.bases is None or dotted(node.value) in self.bases):
            self.found.append(node.attr)


def _attributes(project: Project, path: Path, module: str, name: str) -> list[cst.Name]:
    bases = module_names(project, path, module)
    if not bases:
        return []
    finder = _Attributes(bases, name)
    project.tree(path).visit(finder)
    return finder.found


class _Strings(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: list[cst.SimpleString] = []

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        """Any string."""
        self.found.append(node)


def strings_of(tree: cst.CSTNode) -> list[cst.SimpleString]:
    """All strings below a node."""
    finder = _Strings()
    tree.visit(finder)
    return finder.found


def _dotted_strings(tree: cst.Module, old: str, new: str) -> dict[int, str]:
    """Strings that hold a dotted name, as patches of tests do."""
    pattern = re.compile(rf"(?<![\w.]){re.escape(old)}(?!\w)")
    return {id(item): pattern.sub(new, item.value) for item in strings_of(tree) if pattern.search(item.value)}


class _NamedAttributes(cst.CSTVisitor):
    def __init__(self, bases: set[str], name: str) -> None:
        self.bases, self.name = bases, name
        self.found: list[cst.SimpleString] = []

    def visit_Call(self, node: cst.Call) -> None:
        """setattr(module, "name", ...)."""
        values = [arg.value for arg in node.args[:2]]
        if len(values) < 2 or dotted(values[0]) not in self.bases:
            return
        if isinstance(values[1], cst.SimpleString) and values[1].evaluated_value == self.name:
            self.found.append(values[1])


def _named_attributes(project: Project, path: Path, module: str, row: Rename) -> dict[int, str]:
    finder = _NamedAttributes(module_names(project, path, module), row.old)
    if finder.bases:
        project.tree(path).visit(finder)
    return {id(item): item.value.replace(row.old, row.new) for item in finder.found}


def _exports(tree: cst.Module, row: Rename) -> dict[int, str]:
    """The entry in `__all__`."""
    found: dict[int, str] = {}
    for statement in tree.body:
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Assign):
            assign = statement.body[0]
            if dotted(assign.targets[0].target) == "__all__":
                hits = [item for item in strings_of(assign) if item.evaluated_value == row.old]
                found |= {id(item): item.value.replace(row.old, row.new) for item in hits}
    return found


def _member(row: Rename, project: Project) -> dict[Path, Edits]:
    path = project.root / row.path
    if not path.is_file():
        raise TableError(f"{row}: there is no {row.path}")
    classes = [node for node in definitions(project.tree(path)).get(row.within, []) if isinstance(node, cst.ClassDef)]
    if not classes:
        raise TableError(f"{row}: there is no class {row.within}")
    edits: dict[Path, Edits] = {}
    for node in classes:
        if list(members_of(node, row.new)):
            raise TableError(f"{row}: {row.within} has a {row.new} already")
        edits.setdefault(path, Edits()).names += members_of(node, row.old)
        edits[path].strings |= _docstrings(node, row)
    called = {row.within.split(".")[-1], "replace", "cls"}
    for _, other in _having(project, row.old):
        if row.scope and not any(other.is_relative_to(project.root / part) for part in row.scope):
            continue
        finder = _Attributes(None, row.old)
        project.tree(other).visit(finder)
        edit = edits.setdefault(other, Edits())
        edit.names += [*finder.found, *_keywords(project.tree(other), called, row.old)]
    return {at: Edits(_unique(edit.names), edit.strings) for at, edit in edits.items()}


def _unique(names: Iterable[cst.Name]) -> list[cst.Name]:
    return list({id(name): name for name in names}.values())
