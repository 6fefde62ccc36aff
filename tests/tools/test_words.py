# SPDX-License-Identifier: Apache-2.0
"""tools.words renames definitions and nothing else, and can undo it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from tools.words.__main__ import apply
from tools.words.cpp import code_of, tokens_of
from tools.words.proof import differences, python_code
from tools.words.table import Rename, TableError, inverse, read_table, tables
from tools.words.trees import _of_python, _of_tokens

PLACES = '''"""Where things are."""

__all__ = ["Place", "find"]

LIMIT = 3


class Place:
    """A place; `name` says which."""

    name: str = ""

    def at(self, place: int) -> str:
        """Of `place`."""
        return f"{self.name}{place}" + "place"


def find(found: int, *, given: int = LIMIT) -> int:
    """Finds.

    Args:
        found: what was.
        given: how many.
    """
    made = [found for found in range(given)]  # `made` stays in comments of its own
    return sum(made) + found


def other(LIMIT: int) -> int:
    return LIMIT
'''
READER = """from padfree.bulk import places
from padfree.bulk.places import LIMIT, Place, find


def use(place: Place) -> int:
    found = find(found=1, given=LIMIT)
    return found + places.find(2) + places.LIMIT + len(place.name)


def patch(monkeypatch: object) -> None:
    monkeypatch.setattr(places, "LIMIT", 4)
    monkeypatch.setattr("padfree.bulk.places.LIMIT", 4)


def lazily() -> int:
    from .places import LIMIT as most

    return most
"""
HEADER = """#pragma once
#include "attention/rows.cuh"
// place is a word; placeOf(n) is a function.
enum class Places { kNone };
__device__ int placeOf(int n) { return n; }
struct Rows {
  int place;
  const char* text = "place of placeOf";
};
inline int use(int place) { return placeOf(place); }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small project."""
    for name, text in {
        "bulk/__init__.py": '"""Bulk."""\n',
        "bulk/places.py": PLACES,
        "bulk/reader.py": READER,
        "plugins/attention/rows.cuh": "#pragma once\n",
        "plugins/attention/shape.cuh": HEADER,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def texts(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


ROWS = [
    Rename("local", "found", "total", "bulk/places.py", "find"),
    Rename("local", "made", "numbers", "bulk/places.py", "find"),
    Rename("local", "given", "count", "bulk/places.py", "find"),
    Rename("local", "found", "sum_of_all", "bulk/reader.py", "use"),
    Rename("global", "Place", "Location", "bulk/places.py"),
    Rename("global", "LIMIT", "MOST", "bulk/places.py"),
    Rename("global", "find", "search", "bulk/places.py"),
    Rename("member", "name", "label", "bulk/places.py", "Place"),
    Rename("identifier", "placeOf", "offsetOf", "plugins/attention"),
    Rename("identifier", "place", "offset", "plugins/attention/shape.cuh", "use"),
    Rename("file", "bulk/places.py", "bulk/locations.py", "bulk/places.py"),
    Rename("file", "plugins/attention/rows.cuh", "plugins/attention/row_sums.cuh", "plugins/attention/rows.cuh"),
]


def test_every_definition_is_renamed_where_it_is_meant(root: Path) -> None:
    apply(ROWS, root)
    positions, reader = (root / "bulk/locations.py").read_text(), (root / "bulk/reader.py").read_text()
    assert '__all__ = ["Location", "search"]' in positions
    assert "class Location:" in positions
    assert "def search(total: int, *, count: int = MOST) -> int:" in positions
    assert "        total: what was.\n        count: how many." in positions
    assert "numbers = [total for total in range(count)]  # `made` stays" in positions
    assert "def other(LIMIT: int) -> int:\n    return LIMIT" in positions  # a name of its own
    assert 'return f"{self.label}{place}" + "place"' in positions
    assert "from padfree.bulk import locations\nfrom padfree.bulk.locations import MOST, Location, search" in reader
    assert "sum_of_all = search(total=1, count=MOST)" in reader
    assert "return sum_of_all + locations.search(2) + locations.MOST + len(place.label)" in reader
    assert 'monkeypatch.setattr(locations, "MOST", 4)' in reader
    assert 'monkeypatch.setattr("padfree.bulk.locations.MOST", 4)' in reader
    assert "from .locations import MOST as most" in reader
    assert (root / "plugins/attention/row_sums.cuh").is_file()
    assert (root / "plugins/attention/shape.cuh").read_text().splitlines() == [
        "#pragma once",
        '#include "attention/row_sums.cuh"',
        "// place is a word; offsetOf(n) is a function.",
        "enum class Places { kNone };",
        "__device__ int offsetOf(int n) { return n; }",
        "struct Rows {",
        "  int place;",
        '  const char* text = "place of placeOf";',
        "};",
        "inline int use(int offset) { return offsetOf(offset); }",
    ]


def test_the_inverse_takes_everything_back(root: Path) -> None:
    before = texts(root)
    apply(ROWS, root)
    assert texts(root) != before
    apply(inverse(ROWS), root)
    assert texts(root) == before


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Rename("global", "find", "Place", "bulk/places.py"), "has a Place already"),
        (Rename("global", "lost", "found", "bulk/places.py"), "has no lost"),
        (Rename("local", "found", "made", "bulk/places.py", "find"), "has a made already"),
        (Rename("local", "LIMIT", "most", "bulk/places.py", "find"), "is not a name of find itself"),
        (Rename("member", "name", "at", "bulk/places.py", "Place"), "has a at already"),
        (Rename("identifier", "placeOf", "use", "plugins/attention"), "has a use already"),
        (Rename("identifier", "gone", "there", "plugins/attention"), "there is no gone"),
        (Rename("file", "bulk/places.py", "bulk/reader.py", "bulk/places.py"), "there is a bulk/reader.py"),
    ],
)
def test_a_row_that_would_change_more_is_refused(root: Path, row: Rename, message: str) -> None:
    with pytest.raises(TableError, match=message):
        apply([row], root)


def test_the_proof_sees_code_and_strings_but_no_comments(root: Path) -> None:
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    apply(ROWS, root)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    shape = root / "plugins/attention/shape.cuh"
    shape.write_text(shape.read_text().replace("// place is a word;", "// Another comment."))
    assert list(differences("HEAD", [ROWS], apply, root)) == []
    shape.write_text(shape.read_text().replace('"place of', '"offset of'))
    assert list(differences("HEAD", [ROWS], apply, root)) == [
        "plugins/attention/shape.cuh: '\"place of placeOf\"' became '\"offset of placeOf\"'"
    ]


def test_docstrings_and_the_order_of_imports_are_no_code() -> None:
    one = '"""One."""\nfrom b import x, y\nfrom a import z\nvalue = "text"\n'
    other = 'from a import z\nfrom b import y, x\n\n# why\nvalue = "text"\n'
    assert python_code(one) == python_code(other)
    assert python_code(one) != python_code(one.replace('"text"', '"word"'))


def test_tokens_are_the_file() -> None:
    source = 'a /* b\n */ R"x(" y )x" \'c\' 1\'000u #include <a/b.h>\n"d\\"e" // f'
    assert "".join(token.text for token in tokens_of(source)) == source
    assert code_of("a  // b\n+ c") == ["a", "+", "c"]


@pytest.mark.parametrize("path", tables(), ids=lambda path: path.stem)
def test_tables_can_be_read(path: Path) -> None:
    assert read_table(path)


def test_trees_may_differ_by_names_of_the_tables_alone() -> None:
    before = "def f(found: int) -> int:\n    'Doc.'\n    rest = found\n    return rest\n"
    after = before.replace("found", "count").replace("Doc", "Another")
    assert _of_python(before, after, {("found", "count")}) == []
    assert set(_of_python(before, after, {("found", "size")})) == {"'found' became 'count'"}
    assert _of_python(before, before.replace("= found", "= -found"), set()) == ["'found' became '-found'"]
    merged = before.replace("found", "rest")
    assert _of_python(before, merged, {("found", "rest")}) == ["found and rest of f became rest"]
    assert _of_tokens("int a = 1;  // one", "int b = 1;", {("a", "b")}) == []
    assert _of_tokens("int a = 1;", "int b = 2;", {("a", "b")}) == ["'1' became '2'"]


def test_trees_tell_everything_that_differs() -> None:
    before = "def f(found: int) -> int:\n    rest = 1\n    return found + 2\n"
    after = "def f(found: int) -> int:\n    rest = 3\n    return found + 4\n"
    assert _of_python(before, after, set()) == ["'1' became '3'", "'2' became '4'"]
    longer = before.replace("    return", "    rest += 1\n    return")
    assert _of_python(before, longer, set()) == ["2 parts became 3: 'return found + 2' became 'rest += 1'"]
