# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md: its folders exist, and its rules about who imports whom hold."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
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
"""Package -> the packages that it never imports."""
MOST_RESHAPES = 15
"""The most files of onnx_tools that may name "Reshape", an operator that many passes meet."""
MOST_PAST_ROOMS = 29
"""The most imports between rooms of onnx_tools that name a module, not the room's face; the number may only fall."""
PUBLIC_MODULES = {
    "padfree.onnx_tools.synthetic",
    "padfree.runtime.batching.measure",
    "padfree.runtime.request",
    "padfree.runtime.texts",
}
"""Modules that pages name, in addition to those of contract, all of which are public."""
PAST_THE_FACES = {
    "padfree.bulk.workers.on_ray": 1,  # needs ray
    "padfree.onnx_tools.cost": 2,
    "padfree.onnx_tools.eight_bits": 1,
    "padfree.runtime.batching.pace": 1,
    "padfree.runtime.batching.queue": 1,
    "padfree.runtime.batching.speed": 1,
    "padfree.runtime.c_api": 1,
    "padfree.runtime.gpu.cuda": 6,  # needs cuda-bindings
    "padfree.runtime.gpu.tensorrt_backend": 1,  # needs cuda-bindings and TensorRT
    "padfree.runtime.tensorrt_timing": 1,
    "padfree.runtime.triton.items": 2,
    "padfree.runtime.triton.texts": 1,
}
"""Non-public module -> how many imports in other packages name it; these numbers may only fall."""


def first_column(heading: str) -> list[str]:
    """The first cells of the first table under a heading, without the table's head."""
    table = re.split(rf"^#+ {heading}$", PAGE, flags=re.MULTILINE)[1].split("\n|", 1)[1].split("\n\n")[0]
    return [line.strip("|").split("|")[0].strip() for line in table.splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)/?`", cell)


ROOMS = [names(cell)[0] if "`" in cell else cell for cell in first_column("Rooms")]


def imports(package: str) -> Iterator[tuple[Path, str]]:
    """The files of a package, by their paths inside it, each with the full name of one of its imports."""
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
    """The room (folder) of onnx_tools that a path or a module's name belongs to."""
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


def test_recognition_changes_no_graph() -> None:
    changing = {"Editor", "tidy", "inline_constants"}
    assert [
        f"{path} imports {name}"
        for path, name in imports("onnx_tools")
        if path.parts[0] == "match" and name.rsplit(".", 1)[-1] in changing
    ] == []


@pytest.mark.parametrize("room", ["match", "passes"])
def test_folders_of_a_room_import_each_other_in_no_circle(room: str) -> None:
    """A single module counts as a folder; the list of passes imports all of them, and none imports the list."""
    below: dict[str, set[str]] = defaultdict(set)
    for path, name in imports("onnx_tools"):
        parts = name.split(".")[2:]
        if path.parts[0] == room and name.startswith(f"padfree.onnx_tools.{room}.") and path.name != "__init__.py":
            below[path.parts[1].removesuffix(".py")].add(parts[1])
    assert len(below) > 3
    order = TopologicalSorter({folder: others - {folder} for folder, others in below.items()})
    order.prepare()


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_import_what_they_may(package: str) -> None:
    wrong = [
        f"{path} imports {name}"
        for path, name in imports(package)
        if any(name == other or name.startswith(f"{other}.") for other in FORBIDDEN[package])
    ]
    assert wrong == []


def past_the_faces(package: str) -> Iterator[str]:
    """The modules of other packages that a package's import statements name, except public ones."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                named = [node.module or ""]
            for name in named:
                first, *inside = name.split(".")
                if first != "padfree" or not inside or inside[0] in (package, "contract") or name in PUBLIC_MODULES:
                    continue
                if ROOT.joinpath(*inside).with_suffix(".py").is_file():
                    yield name


def test_packages_import_each_other_through_their_faces() -> None:
    folders = {name for cell in first_column("The folders") for name in names(cell)}
    product = sorted(folders - {"tests", "benchmarks", "examples", "tools"})
    assert {"builder", "bulk", "integrations", "onnx_tools", "package", "runtime", "serving", "training"} <= {*product}
    assert Counter(name for package in product for name in past_the_faces(package)) == PAST_THE_FACES


def test_rooms_import_each_other_through_their_faces() -> None:
    past = []
    for path in (ROOT / "onnx_tools").rglob("*.py"):
        here = ["onnx_tools", *path.relative_to(ROOT / "onnx_tools").parent.parts]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level and node.module:
                target = [*here[: len(here) - node.level + 1], *node.module.split(".")]
                inside = len(target) > 2 and ROOT.joinpath(*target).with_suffix(".py").is_file()
                if inside and target[1] in ROOMS and target[1] not in here:
                    past.append(f"{path.name} imports {'.'.join(target)}")
    assert 0 < len(past) <= MOST_PAST_ROOMS, past


def test_few_files_know_an_operator_of_onnx() -> None:
    """What passes treat alike is recorded in `analysis/onnx_operators.py`, and the graph's editor makes nodes."""
    files = [path for path in (ROOT / "onnx_tools").rglob("*.py") if '"Reshape"' in path.read_text("utf-8")]
    assert len(files) <= MOST_RESHAPES
