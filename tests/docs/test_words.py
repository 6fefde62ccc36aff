# SPDX-License-Identifier: Apache-2.0
"""Names are nouns for values and verbs for functions, in the field's own words: words.toml lists those words."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.definitions import CLASS, FILE, ROOT, VALUE, Definition, definitions_in

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGES = ["contract", "onnx_tools", "builder", "runtime", "serving", "bulk", "training", "integrations", "package"]
FOLDERS = [*PACKAGES, "tools", "examples", "tests", "benchmarks"]
WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
IRREGULAR, OTHERS = (set(WORDS["participles"][kind].split()) for kind in ("irregular", "others"))
RESULTS = set(WORDS["participles"]["results"].split())
REMAINING: dict[str, int] = WORDS["remaining"]
SLACK = 12
"""How far these numbers may be too high: files that change together need not agree on them."""


@cache
def definitions_of(folder: str) -> tuple[Definition, ...]:
    """What the files below a folder define: they are read once."""
    return tuple(definitions_in(folder))


def is_participle(item: Definition) -> bool:
    """Whether the whole name is a participle that only says what was done to the value."""
    is_one = item.word in IRREGULAR or (re.fullmatch("[a-z]+ed", item.word) and item.word not in OTHERS)
    return bool(is_one) and not (item.kind == VALUE and item.word in RESULTS)


def is_checked(item: Definition) -> bool:
    """Tests and benchmarks may name their local values freely: only what they define for others is checked."""
    return item.kind != VALUE or item.path.split("/")[0] not in ("tests", "benchmarks")


@pytest.mark.parametrize(
    "folder", [pytest.param(name, marks=[pytest.mark.slow] * (name == "tests")) for name in FOLDERS]
)
def test_names_that_are_participles_get_fewer(folder: str) -> None:
    names = [item for item in definitions_of(folder) if is_participle(item) and is_checked(item)]
    shown = "\n".join(f"{item.kind} {item.name} ({item.owner})" for item in names)
    most = REMAINING.get(folder, 0)
    assert len(names) <= most, f"a noun for the value, a verb for the function (CONTRIBUTING.md, Rename):\n{shown}"
    assert len(names) >= most - SLACK, f"there are {len(names)} left: lower the number in words.toml"


def test_participles_are_found() -> None:
    words = {item.word for item in definitions_of("onnx_tools") if item.word in RESULTS}
    assert {"scaled", "packed"} <= words, "values that operations make may have these names"
    assert is_participle(Definition("_found", VALUE, "a.py"))
    assert is_participle(Definition("scaled", "function", "a.py"))
    assert not is_participle(Definition("found_names", VALUE, "a.py"))


def classes_of(package: str) -> dict[str, dict[str, list[str]]]:
    """Names of classes and aliases -> their definitions, each with the files that have it."""
    results: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted((ROOT / package).rglob("*.py")):
        tree, name = ast.parse(path.read_text("utf-8")), path.relative_to(ROOT).as_posix()
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                results[node.name.strip("_")][f"{name}: class"].append(name)
        for alias, value in _aliases(tree):
            results[alias.strip("_")][value].append(name)
    return results


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        if re.fullmatch(r"_?(?:[A-Z]+[a-z]+\d*)+[A-Z]?", node.targets[0].id):
            yield node.targets[0].id, ast.unparse(node.value).replace("npt.NDArray[Any]", "Array")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_has_one_meaning_in_its_package(package: str) -> None:
    several = {name: dict(meanings) for name, meanings in classes_of(package).items() if len(meanings) > 1}
    assert several == {}, "give each its own name"


@pytest.mark.parametrize("word", WORDS.get("senses", {}))
def test_a_word_has_one_sense_in_a_package(word: str) -> None:
    senses: dict[str, dict[str, Any]] = WORDS.get("senses", {})[word]
    wrong = []
    for package in PACKAGES:
        names = {name for name, parts in parts_in(package).items() if word in parts}
        known = set(senses.get(package, {}).get("names", "").split())
        wrong += [f"{package}: {name} is new" for name in sorted(names - known)]
        wrong += [f"{package}: {name} is gone" for name in sorted(known - names)]
    assert wrong == [], f"'{word}' has a sense per package in words.toml; take another word, or add the name there"


@cache
def parts_in(package: str) -> dict[str, set[str]]:
    """The names that a package defines, with their words."""
    return {name: parts_of(name) for name in {item.name for item in definitions_of(package)}}


def parts_of(name: str) -> set[str]:
    """The words of a name in lower case; plurals also as singulars."""
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    return parts | {part.removesuffix("s") for part in parts} | {part.removesuffix("es") for part in parts}


def test_files_are_looked_at() -> None:
    assert Definition("test_words", FILE, "tests/docs/test_words.py") in definitions_of("tests")
    assert Definition("Definition", CLASS, "tests/support/definitions.py") in definitions_of("tests")
