# SPDX-License-Identifier: Apache-2.0
"""All in a file that renaming looks for, collected in one pass: a file has many names, and a table many rows."""

from __future__ import annotations

from collections import defaultdict

import libcst as cst

from .modules import dotted_name


class Index(cst.CSTVisitor):
    """Attributes, calls, strings, docstrings, imports and definitions of a file, by their names.

    Attributes:
        attributes: the last names of a.b.c, with what comes before them.
        calls: calls, by the last name of the callee.
        patterns: `case F(name=...)`, by the last name of F.
        strings: all plain strings.
        docstrings: strings that are statements.
        imports: `from a import b`.
        modules: `import a.b`.
        definitions: functions and classes by their dotted names; overloads share one.
    """

    def __init__(self, tree: cst.Module) -> None:
        self.attributes: dict[str, list[tuple[str, cst.Name]]] = defaultdict(list)
        self.calls: dict[str, list[cst.Call]] = defaultdict(list)
        self.patterns: dict[str, list[cst.MatchClass]] = defaultdict(list)
        self.strings: list[cst.SimpleString] = []
        self.docstrings: list[cst.SimpleString] = []
        self.imports: list[cst.ImportFrom] = []
        self.modules: list[cst.Import] = []
        self.definitions: dict[str, list[cst.FunctionDef | cst.ClassDef]] = defaultdict(list)
        self._path: list[str] = []
        tree.visit(self)

    def visit_Attribute(self, node: cst.Attribute) -> None:
        """base.name."""
        self.attributes[node.attr.value].append((dotted_name(node.value), node.attr))

    def visit_Call(self, node: cst.Call) -> None:
        """f(...), x.f(...), partial(f, ...)."""
        callee = dotted_name(node.func).split(".")[-1]
        if callee == "partial" and node.args:
            callee = dotted_name(node.args[0].value).split(".")[-1]
        self.calls[callee].append(node)

    def visit_MatchClass(self, node: cst.MatchClass) -> None:
        """case F(...)."""
        self.patterns[dotted_name(node.cls).split(".")[-1]].append(node)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        """Any string."""
        self.strings.append(node)

    def visit_Expr(self, node: cst.Expr) -> None:
        """A string by itself."""
        if isinstance(node.value, cst.SimpleString):
            self.docstrings.append(node.value)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """from a import b."""
        self.imports.append(node)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        """import a.b."""
        self.modules.append(node)
        return False

    def _enter(self, node: cst.FunctionDef | cst.ClassDef) -> None:
        self._path.append(node.name.value)
        self.definitions[".".join(self._path)].append(node)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Enters a function."""
        self._enter(node)

    def leave_FunctionDef(self, _node: cst.FunctionDef) -> None:
        """Leaves a function."""
        self._path.pop()

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        """Enters a class."""
        self._enter(node)

    def leave_ClassDef(self, _node: cst.ClassDef) -> None:
        """Leaves a class."""
        self._path.pop()

    def keywords(self, callee: str, name: str) -> list[cst.Name]:
        """The keywords of this name in f(name=...) and `case f(name=...)`."""
        names = [arg.keyword for call in self.calls.get(callee, ()) for arg in call.args if arg.keyword is not None]
        names += [item.key for pattern in self.patterns.get(callee, ()) for item in pattern.kwds]
        return [keyword for keyword in names if keyword.value == name]
