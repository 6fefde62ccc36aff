# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.words TABLE...` applies tables; `--inverse` takes them back; `--proof REVISION` compares with it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from . import cpp, files, trees
from .modules import Project
from .proof import differences
from .python import Renaming
from .table import ROOT, Rename, TableError, inverse, read_table


def apply(rows: Sequence[Rename], root: Path = ROOT) -> list[Path]:
    """Applies the rows of a table: leading files, all definitions at once, other files; returns the changed files.

    Raises:
        TableError: lists all definitions that cannot be renamed; none has been then. Or a file cannot be moved.
    """
    project, changed, problems = Project(root), set[Path](), list[str]()
    first = list(takewhile(lambda row: row.kind == "file", rows))
    for row in first:
        changed.update(files.apply(row, project))
    definitions = Renaming(project)
    for row in rows:
        if row.kind != "file":
            problems += _refusals(row, definitions, changed)
    if problems:
        raise TableError("\n".join(problems))
    changed.update(definitions.apply())
    project.write()
    for row in rows[len(first) :]:
        if row.kind == "file":
            changed.update(files.apply(row, project))
    return sorted(changed)


def _refusals(row: Rename, definitions: Renaming, changed: set[Path]) -> list[str]:
    """Looks a definition up; returns why it cannot be renamed, or an empty list."""
    try:
        if row.kind == "identifier":
            changed.update(cpp.apply(row, definitions.project))
        else:
            definitions.add(row)
    except TableError as error:
        return [str(error)]
    return []


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.words", description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="files of tools/words/table")
    parser.add_argument("--inverse", action="store_true", help="from the new names back to the old ones")
    parser.add_argument(
        "--proof",
        metavar="REVISION",
        help="change nothing: apply the tables to that revision, and compare its code, without comments and "
        "docstrings, with what is here",
    )
    parser.add_argument(
        "--trees",
        nargs=2,
        metavar="REVISION",
        help="change nothing: walk the syntax trees of two revisions side by side, whose names may differ as the "
        "tables say; seconds, where --proof takes minutes",
    )
    arguments = parser.parse_args(argv)
    try:
        tables = [read_table(table) for table in arguments.tables]
        if arguments.inverse:
            tables = [inverse(table) for table in reversed(tables)]
        if arguments.trees is not None:
            before, after = arguments.trees
            lines = list(trees.differences(before, after, tables))
            sys.stdout.write("".join(f"{line}\n" for line in lines) or "the same code\n")
            return bool(lines)
        if arguments.proof is not None:
            lines = list(differences(arguments.proof, tables, apply))
            sys.stdout.write("".join(f"{line}\n" for line in lines) or "the same code\n")
            return bool(lines)
        for rows in tables:
            changed = apply(rows)
            sys.stdout.write(f"{len(rows)} definitions, {len(changed)} files\n")
    except TableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
