# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md: its folders exist, and its rules of who imports whom hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import page

ROOT = Path(__file__).resolve().parents[2]
PAGE = page("architecture").read_text("utf-8")
ENTRY = "top level"
FORBIDDEN = {
    "contract": {
        "padfree.builder",
        "padfree.onnx_tools",
        "padfree.runtime",
        "padfree.serving",
        "padfree.bulk",
        "numpy",
        "onnx",
        "tensorrt",
        "cuda",
    },
    "onnx_tools": {
        "padfree.builder",
        "padfree.runtime",
        "padfree.serving",
        "padfree.bulk",
        "tensorrt",
        "cuda",
        "polygraphy",
    },
    "runtime": {"padfree.builder", "padfree.onnx_tools", "padfree.serving", "padfree.bulk", "polygraphy", "pyarrow"},
    "integrations": {"padfree.builder", "padfree.onnx_tools", "padfree.serving", "onnx", "onnxruntime", "tensorrt"},
    "training": {
        "padfree.builder",
        "padfree.onnx_tools",
        "padfree.serving",
        "onnx",
        "onnxruntime",
        "tensorrt",
        "cuda",
        "torch",
        "sentence_transformers",
        "accelerate",
    },
    "serving": {"padfree.builder", "padfree.onnx_tools", "onnx", "onnxruntime", "tensorrt", "cuda", "polygraphy"},
    "bulk": {
        "padfree.builder",
        "padfree.onnx_tools",
        "padfree.serving",
        "onnx",
        "onnxruntime",
        "tensorrt",
        "cuda",
        "polygraphy",
        "rich",
    },
}
"""Package -> what it never imports."""


def first_column(heading: str) -> list[str]:
    """The first cells of the first table below a heading, without the table's head."""
    table = re.split(rf"^#+ {heading}$", PAGE, flags=re.MULTILINE)[1].split("\n|", 1)[1].split("\n\n")[0]
    return [line.strip("|").split("|")[0].strip() for line in table.splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)/?`", cell)


ROOMS = [names(cell)[0] if "`" in cell else cell for cell in first_column("Rooms")]


def imports(package: str) -> Iterator[tuple[Path, str]]:
    """Every file of a package, by its path inside, and the full name of what it imports."""
    folder = ROOT / package
    for path in folder.rglob("*.py"):
        inside = path.relative_to(folder)
        here = ["padfree", package, *inside.parent.parts]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((inside, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                start = here[: len(here) - node.level + 1] if node.level else []
                module = ".".join([*start, *([node.module] if node.module else [])])
                yield from ((inside, f"{module}.{alias.name}") for alias in node.names)


def room_of(parts: tuple[str, ...]) -> str:
    """The room of onnx_tools that a path, or a module's name, lies in."""
    first = parts[0].removesuffix(".py") if parts else ENTRY
    return first if first in ROOMS else ENTRY


def test_the_folders_exist() -> None:
    folders = [name for cell in first_column("The folders") for name in names(cell)]
    assert {"onnx_tools", "builder", "runtime", "plugins", "tests"} <= set(folders)
    assert [name for name in folders if not (ROOT / name).is_dir()] == []


def test_the_rooms_are_those_of_onnx_tools() -> None:
    folders = {path.parent.name for path in (ROOT / "onnx_tools").glob("*/__init__.py")}
    assert folders == set(ROOMS) - {"errors", ENTRY}


def test_rooms_import_rooms_above_them() -> None:
    wrong = []
    for path, name in imports("onnx_tools"):
        if name.startswith("padfree.onnx_tools."):
            target = room_of(tuple(name.split(".")[2:]))
            if ROOMS.index(target) > ROOMS.index(room_of(path.parts)):
                wrong.append(f"{path} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_import_what_they_may(package: str) -> None:
    wrong = [
        f"{path} imports {name}"
        for path, name in imports(package)
        if any(name == other or name.startswith(f"{other}.") for other in FORBIDDEN[package])
    ]
    assert wrong == []
