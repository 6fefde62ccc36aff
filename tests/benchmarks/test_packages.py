# SPDX-License-Identifier: Apache-2.0
"""The packages of benchmarks: which module imports which, by the source alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))
MOST_FILES = 20


def imports_of(file: Path) -> Iterator[str]:
    """The full names of the modules that a file imports from this repository; `from . import x` gives x."""
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" if is_package(module) else module for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in ("benchmarks", "tests"))


def is_package(module: str) -> bool:
    return (ROOT / Path(*module.split(".")) / "__init__.py").exists()


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_modules_import_each_other_in_one_direction() -> None:
    modules = {module_of(file): {*imports_of(file)} - {module_of(file)} for file in FILES}
    assert modules["benchmarks.attention.peers"] >= {"benchmarks.attention.problem", "tests.support.launchers"}
    TopologicalSorter(modules).prepare()  # raises CycleError


def test_packages_import_each_other_in_one_direction() -> None:
    packages: dict[str, set[str]] = {}
    for file in FILES:
        parts = {".".join(name.split(".")[:2]) for name in imports_of(file)}
        own = ".".join(module_of(file).split(".")[:2])
        packages.setdefault(own, set()).update(parts - {own})
    assert "benchmarks.attention" in packages["benchmarks.pages"]
    TopologicalSorter(packages).prepare()


def test_of_the_tests_only_what_they_share_is_imported() -> None:
    results = {name for file in FILES for name in imports_of(file) if name.startswith("tests")}
    assert results
    assert all(name.startswith("tests.support.") for name in results)


def test_nothing_is_imported_by_its_path() -> None:
    for file in [*FILES, *(ROOT / "tests").rglob("*.py")]:
        match = re.findall(r"sys\.path\.(?:insert|append|extend)|sys\.path\[", file.read_text("utf-8"))
        assert match == [] or file == Path(__file__), file
    assert not any("spec_from_file_location" in file.read_text("utf-8") for file in FILES)


def test_folders_are_small() -> None:
    folders = {file.parent for file in FILES}
    assert all(len(list(folder.glob("*.py"))) <= MOST_FILES for folder in folders)
