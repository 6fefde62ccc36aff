# SPDX-License-Identifier: Apache-2.0
"""Finds the plain names in a syntax tree that mean a definition."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import libcst as cst

Scope = cst.FunctionDef | cst.Lambda


class Names(cst.CSTVisitor):
    """The plain names below a node: neither attributes nor keywords of calls."""

    def __init__(self) -> None:
        self.names: list[cst.Name] = []

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """An attribute belongs to an object."""
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        """A keyword belongs to the function that is called."""
        node.value.visit(self)
        return False

    def visit_ImportFrom(self, _node: cst.ImportFrom) -> bool:
        """Imports are looked at by themselves."""
        return False

    def visit_Import(self, _node: cst.Import) -> bool:
        """Imports are looked at by themselves."""
        return False

    def visit_MatchKeywordElement(self, node: cst.MatchKeywordElement) -> bool:
        """A keyword of a pattern is an attribute."""
        node.pattern.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        """A name by itself."""
        self.names.append(node)


def names_below(node: cst.CSTNode) -> list[cst.Name]:
    """All plain names below a node."""
    finder = Names()
    node.visit(finder)
    return finder.names


def parameters(function: Scope) -> set[str]:
    """The names of all parameters."""
    params = function.params
    stars = [item for item in (params.star_arg, params.star_kwarg) if isinstance(item, cst.Param)]
    every = [*params.params, *params.posonly_params, *params.kwonly_params, *stars]
    return {item.name.value for item in every}


class Bindings(cst.CSTVisitor):
    """Names that a function binds itself, except those that it imports; functions inside it are not entered."""

    def __init__(self, function: Scope) -> None:
        self.names = parameters(function)
        self.outer: set[str] = set()
        self._function = function

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Its name is bound; what is inside is its own."""
        if node is not self._function:
            self.names.add(node.name.value)
        return node is self._function

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """As with functions."""
        self.names.add(node.name.value)
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        """As with functions."""
        return node is self._function

    def visit_Global(self, node: cst.Global) -> None:
        """A name of the module."""
        self.outer |= {item.name.value for item in node.names}

    def _bind(self, target: cst.CSTNode) -> None:
        if isinstance(target, cst.Name):
            self.names.add(target.value)
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._bind(element.value)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        """x = ..."""
        self._bind(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        """x: int = ..."""
        self._bind(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        """x += ..."""
        self._bind(node.target)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        """(x := ...)."""
        self._bind(node.target)

    def visit_For(self, node: cst.For) -> None:
        """for x in ..."""
        self._bind(node.target)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        """... for x in ...: bound only in the comprehension, but taken to be the function's."""
        self._bind(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:
        """with ... as x, except ... as x."""
        self._bind(node.name)

    def visit_MatchAs(self, node: cst.MatchAs) -> None:
        """case ... as x."""
        if node.name is not None:
            self.names.add(node.name.value)


@lru_cache(maxsize=100_000)
def _bound(function: Scope) -> frozenset[str]:
    finder = Bindings(function)
    function.visit(finder)
    return frozenset(finder.names - finder.outer)


def binds(function: Scope, name: str) -> bool:
    """Whether the function binds the name itself."""
    return name in _bound(function)


class Free(Names):
    """Plain names in the module's scope: not those that a function or a class binds itself."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._depth = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """If the function binds the name, only what is evaluated outside it counts."""
        for outside in (*node.decorators, node.returns):
            if outside is not None:
                outside.visit(self)
        for param in _params(node):
            for part in (param.annotation, param.default):
                if part is not None:
                    part.visit(self)
        if not self._depth and node.name.value == self.name:
            self.names.append(node.name)
        if not binds(node, self.name):
            depth, self._depth = self._depth, self._depth + 1
            node.body.visit(self)
            self._depth = depth
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        """As with functions."""
        return not binds(node, self.name)

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """Fields and methods are members; names in their definitions may be the module's."""
        for outside in (*node.decorators, *node.bases, *node.keywords):
            outside.visit(self)
        if not self._depth and node.name.value == self.name:
            self.names.append(node.name)
        depth, self._depth = self._depth, self._depth + 1
        members = {id(member) for member in members_of(node, self.name)}
        before = len(self.names)
        node.body.visit(self)
        self.names[before:] = [item for item in self.names[before:] if id(item) not in members]
        self._depth = depth
        return False


def _params(node: cst.FunctionDef) -> Iterator[cst.Param]:
    params = node.params
    yield from (*params.params, *params.posonly_params, *params.kwonly_params)
    for item in (params.star_arg, params.star_kwarg):
        if isinstance(item, cst.Param):
            yield item


def members_of(node: cst.ClassDef, name: str) -> Iterator[cst.Name]:
    """The places in a class's body that define a method or a field of this name."""
    for statement in node.body.body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value == name:
            yield statement.name
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for small in statement.body:
            targets: list[cst.CSTNode] = []
            if isinstance(small, cst.AnnAssign):
                targets = [small.target]
            elif isinstance(small, cst.Assign):
                targets = [target.target for target in small.targets]
            yield from (item for item in targets if isinstance(item, cst.Name) and item.value == name)
