# SPDX-License-Identifier: Apache-2.0
"""What callers of padfree may rely on, as sorted lines: `python -m tests.frozen.surface` prints it as JSON.

Sources are read, not imported, so that optional packages need not be installed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r"\bPADFREE_[A-Z0-9_]+\b")
METRIC = re.compile(r"\bpadfree_[a-z0-9_]+\b")
SERIALIZERS = re.compile(r"to_dict|to_json|record|to_strings|_?described?|as_json|_\w*json\w*")
"""Names of functions whose dictionaries are written into files and answers."""
DEFINES_SERIALIZER = re.compile(rf"\bdef ({SERIALIZERS.pattern})\(")
WRITES_FIELDS = re.compile(r"\b(asdict|fields|vars)\(")
"""Whether a file has to be looked at more closely, which takes far longer than these searches."""


@cache
def packages(root: Path = ROOT) -> dict[str, Path]:
    """The wheel's packages by their dotted names, with the folders that hold them."""
    table = (root / "pyproject.toml").read_text("utf-8").split("[tool.scikit-build.wheel.packages]\n")[1]
    lines = re.findall(r'^"(.+)" = "(.+)"$', table.split("\n[")[0], re.MULTILINE)
    return {name.replace("/", "."): root / folder for name, folder in lines}


@cache
def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module by its dotted name."""
    table = {}
    for package, folder in packages(root).items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *parts])
            table[name.removesuffix(".__init__")] = path
    return table


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"))


def exports_of(module: ast.Module) -> list[str]:
    """What `__all__` lists."""
    for node in module.body:
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def bound(module: ast.Module) -> Iterator[str]:
    """Names that a module has."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in node.names)
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


@cache
def definitions(path: Path) -> dict[str, ast.stmt]:
    """The classes and functions at the top of a file by their names; of two of one name the first."""
    nodes = [node for node in tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return {node.name: node for node in reversed(nodes)}


@cache
def definition(module: str, name: str, root: Path) -> ast.stmt | None:
    """The class or function that a package exports, wherever in the package it is defined."""
    table = modules(root)
    inside = sorted((key for key in table if key == module or key.startswith(f"{module}.")), key=len)
    found = (definitions(table[key]).get(name) for key in [*inside, *table])
    return next((node for node in found if node is not None), None)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The parameters that a caller may name."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [item.arg for item in named if item.arg not in ("self", "cls") and not item.arg.startswith("_")]


def members(node: ast.stmt) -> Iterator[str]:
    """Parameters of a function; fields, methods and their parameters of a class."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (f"({name})" for name in parameters(node))
    if not isinstance(node, ast.ClassDef):
        return
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not item.target.id.startswith("_"):
            yield f".{item.target.id}"
        if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if item.name == "__init__":
            yield from (f"({name})" for name in parameters(item))
        elif not item.name.startswith("_"):
            yield f".{item.name}"
            yield from (f".{item.name}({name})" for name in parameters(item))


def with_bases(node: ast.stmt | None, module: str, root: Path) -> Iterator[ast.stmt]:
    """A definition, and of a class those of its base classes, whose members it has."""
    if node is None:
        return
    yield node
    for base in node.bases if isinstance(node, ast.ClassDef) else ():
        if isinstance(base, ast.Name) and base.id != getattr(node, "name", ""):
            yield from with_bases(definition(module, base.id, root), module, root)


def names(root: Path) -> Iterator[str]:
    """Everything in the `__all__` of every module, with the parameters and members that callers may use."""
    for module, path in modules(root).items():
        for name in exports_of(tree(path)):
            yield f"{module}:{name}"
            node = definition(module, name, root)
            found = {member for item in with_bases(node, module, root) for member in members(item)}
            yield from (f"{module}:{name}{member}" for member in sorted(found))


def snippets(root: Path) -> Iterator[str]:
    """The Python programs in the README, the docs and the examples."""
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md")), *sorted((root / "examples").glob("*.md"))]:
        yield from PYTHON_BLOCK.findall(path.read_text("utf-8"))
    for path in sorted((root / "examples").glob("*.py")):
        yield path.read_text("utf-8")


def imports(root: Path) -> Iterator[str]:
    """What users' programs import."""
    for text in snippets(root):
        try:
            program = ast.parse(text)
        except SyntaxError:  # a part of a program
            continue
        for node in ast.walk(program):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("padfree"):
                yield from (f"{node.module}:{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name.startswith("padfree"))


def importable(name: str, root: Path) -> bool:
    """Whether a program may import this name."""
    module, _, wanted = name.partition(":")
    table = modules(root)
    if module not in table:
        return False
    return not wanted or f"{module}.{wanted}" in table or wanted in {*bound(tree(table[module]))}


def options() -> Iterator[str]:
    """Options of all subcommands, and positional arguments as --help names them."""
    from padfree.builder.cli import make_parser

    def walk(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, below in action.choices.items():
                    yield f"{path} {name}"
                    yield from walk(below, f"{path} {name}")
            elif action.option_strings:
                yield from (f"{path} {option}" for option in action.option_strings)
                if isinstance(action.choices, list | tuple):
                    yield from (f"{path} {action.option_strings[0]} {choice}" for choice in action.choices)
            else:
                yield f"{path} <{action.metavar or action.dest}>"

    yield from walk(make_parser(), "padfree")


def keys(root: Path) -> Iterator[str]:
    """JSON keys: those of dictionaries that serializers build, and the fields of dataclasses that are written."""
    for package, folder in packages(root).items():
        for path in sorted(folder.rglob("*.py")):
            module, text = tree(path), path.read_text("utf-8")
            for node in ast.walk(module) if DEFINES_SERIALIZER.search(text) else ():
                if isinstance(node, ast.FunctionDef) and SERIALIZERS.fullmatch(node.name):
                    dictionaries = (item for item in ast.walk(node) if isinstance(item, ast.Dict))
                    written = [key for item in dictionaries for key in item.keys if isinstance(key, ast.Constant)]
                    yield from (f"{package}: {key.value}" for key in written)
            if WRITES_FIELDS.search(text):
                yield from (f"{package}: {name}" for name in _fields_written(module))


def _fields_written(module: ast.Module) -> Iterator[str]:
    """Fields of dataclasses with a method that writes them all: `asdict(self)`, `fields(self)`, `vars(self)`."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and re.search(r"\b(asdict|fields|vars)\((self|cls)\)", ast.unparse(node)):
            items = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            yield from (item.id for item in items if isinstance(item, ast.Name))


WRITTEN_BY_OTHERS = {
    "padfree.builder": ("Finding", "Profile", "Result", "Bound", "Device", "Peaks", "Tolerance"),
    "padfree.onnx_tools": ("Miss", "Island"),
    "padfree.bulk": ("Part", "Manifest", "Options", "InputFile", "Span"),
    "padfree.contract": ("Profile", "EngineInfo", "InputInfo", "OutputInfo", "MaskInfo", "Metadata", "TextInfo"),
}
"""Dataclasses that a function elsewhere writes with `asdict`, where a package has one of that name."""


def other_keys(root: Path) -> Iterator[str]:
    """Fields of the dataclasses in `WRITTEN_BY_OTHERS`."""
    for package, classes in WRITTEN_BY_OTHERS.items():
        for path in sorted(packages(root)[package].rglob("*.py")):
            for node in tree(path).body:
                if isinstance(node, ast.ClassDef) and node.name in classes:
                    items = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
                    yield from (f"{package}: {node.name}.{item.id}" for item in items if isinstance(item, ast.Name))


def operators() -> Iterator[str]:
    """Operators with their inputs, outputs, attributes and those attributes' values."""
    from padfree.onnx_tools.operators import OPERATORS

    table: Mapping[str, object] = {name: OPERATORS[name] for name in OPERATORS}
    for name in table:
        spec = OPERATORS[name]
        yield name
        yield from (f"{name} input {item.name} {item.type} {item.shape}" for item in spec.inputs)
        yield from (f"{name} output {item.name} {item.type} {item.shape}" for item in spec.outputs)
        for attribute in spec.attributes:
            yield f"{name} attribute {attribute.name} {attribute.type}"
            yield from (f"{name} attribute {attribute.name}={value}" for value in attribute.allowed or ())


def variables(root: Path) -> Iterator[str]:
    """Environment variables, CMake options and macros of the C header that the documents name."""
    for path in [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]:
        yield from VARIABLE.findall(path.read_text("utf-8"))


def metrics(root: Path) -> Iterator[str]:
    """Metrics that servers show, and functions of the C header."""
    for path in [*sorted((root / "docs").rglob("*.md")), *sorted((root / "include").rglob("*.h"))]:
        yield from METRIC.findall(path.read_text("utf-8"))


def surface(root: Path = ROOT) -> dict[str, list[str]]:
    """The whole surface, by section."""
    sections: dict[str, Iterator[str]] = {
        "names": names(root),
        "imports": imports(root),
        "options": options(),
        "keys": (line for part in (keys(root), other_keys(root)) for line in part),
        "operators": operators(),
        "variables": variables(root),
        "metrics": metrics(root),
    }
    return {section: sorted({*lines}) for section, lines in sections.items()}


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=0)
    sys.stdout.write("\n")
