# SPDX-License-Identifier: Apache-2.0
"""Tables of names: TOML files, each for a folder or a word, with the old and the new name of every definition.

    why = "a participle; names are nouns for values"

    [local.found]                     # parameters too
    "builder/cli/options.py::fixed_inputs" = "inputs"
    [global.Place]                    # a function, class, constant or alias of a module
    "bulk/places.py" = "Location"
    [member.behind]                   # a method or field; after "in", where its attribute is read
    "contract/metadata.py::InputInfo in contract builder" = "trailing_sizes"
    [identifier.placeOf]              # C++ and CUDA: in a folder or a file, or in a function or class of a file
    "plugins/attention/sm90" = "scoreOffset"
    [file]
    "bulk/places.py" = "bulk/locations.py"

Definitions have the names from before the table is applied; files are renamed last.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest and mypy depend on it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
TABLES = Path(__file__).with_name("table")
KINDS = ("local", "global", "member", "identifier", "file")


class TableError(ValueError):
    """Raised for a row that is malformed or cannot be applied."""


@dataclass(frozen=True)
class Rename:
    """The renaming of one definition or file.

    Attributes:
        kind: one of KINDS.
        old: the old name; for files, the old path.
        new: the new name; for files, the new path.
        path: the file that defines it; for identifiers, it may be a folder.
        within: dotted name of the function or class in the file; "": the file itself.
        scope: folders or files in which an attribute of the name is this member; (): everywhere.
    """

    kind: str
    old: str
    new: str
    path: str
    within: str = ""
    scope: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"{self.path}::{self.within}" if self.within else self.path
        return f"{self.kind} {self.old} -> {self.new} ({place})"


def read_table(path: Path) -> list[Rename]:
    """The rows of one table, in its order, with files last.

    Raises:
        TableError: there is no reason, an unknown kind, or a row that does not map a name to a name.
    """
    raw = tomllib.loads(path.read_text("utf-8"))
    if not isinstance(raw.get("why"), str):
        raise TableError(f"{path.name}: no 'why'; say in a sentence why these names go")
    rows = []
    for kind, words in raw.items():
        if kind == "why":
            continue
        if kind not in KINDS:
            raise TableError(f"{path.name}: [{kind}], allowed: {', '.join(KINDS)}")
        rows += list(_files(words) if kind == "file" else _names(kind, words))
    return sorted(rows, key=lambda row: row.kind == "file")


def _files(words: dict[str, str]) -> Iterator[Rename]:
    for old, new in words.items():
        yield Rename("file", old, new, old)


def _names(kind: str, words: dict[str, dict[str, str]]) -> Iterator[Rename]:
    for old, places in words.items():
        for where, new in places.items():
            if not (old.isidentifier() and new.isidentifier()):
                raise TableError(f"{kind} {old!r} -> {new!r} ({where}): not two names")
            definition, _, scope = where.partition(" in ")
            path, _, within = definition.partition("::")
            yield Rename(kind, old, new, path, within, tuple(scope.split()))


def inverse(rows: Sequence[Rename]) -> list[Rename]:
    """The table from the new names back to the old ones: files first, and definitions found by their new names."""
    names = {(row.path, row.old): row.new for row in rows if row.kind in ("global", "member")}
    new_paths = {row.old: row.new for row in rows if row.kind == "file"}

    def now(row: Rename) -> Rename:
        if row.kind == "file":
            return Rename("file", row.new, row.old, row.new)
        within = ".".join(names.get((row.path, part), part) for part in row.within.split("."))
        return Rename(row.kind, row.new, row.old, row.path, within, row.scope)

    back = [now(row) for row in reversed(rows)]
    return sorted(back, key=lambda row: row.kind != "file") if new_paths else back


def tables() -> list[Path]:
    """All tables, in the order in which they were applied."""
    return sorted(TABLES.glob("*.toml"))
