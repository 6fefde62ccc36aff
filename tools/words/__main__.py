# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.words TABLE...` applies tables; `--inverse` takes them back; `--proof REVISION` compares with it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import cpp, files, python
from .modules import Project
from .proof import differences
from .table import ROOT, Rename, TableError, read_table


def apply(rows: Sequence[Rename], root: Path = ROOT) -> list[Path]:
    """Applies rows in their order; returns the files that changed.

    Raises:
        TableError: rows that cannot be applied, all of them; nothing has been written then, if they are no files.
    """
    project, changed, refused = Project(root), set[Path](), list[str]()
    for row in rows:
        if refused and row.kind == "file":
            break
        try:
            changed.update(_apply(row, project))
        except TableError as error:
            refused.append(str(error))
    if refused:
        raise TableError("\n".join(refused))
    project.write()
    return sorted(changed)


def _apply(row: Rename, project: Project) -> list[Path]:
    if row.kind == "identifier":
        return cpp.apply(row, project)
    if row.kind == "file":
        project.write()
        return files.apply(row, project)
    return python.apply(row, project)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.words", description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="files of tools/words/table")
    parser.add_argument("--inverse", action="store_true", help="from the new names back to the old ones")
    parser.add_argument(
        "--proof",
        metavar="REVISION",
        help="change nothing: apply the tables to that revision, and compare its code, without comments and "
        "docstrings, with what is here",
    )
    arguments = parser.parse_args(argv)
    rows = [row for table in arguments.tables for row in read_table(table)]
    if arguments.inverse:
        rows = [row.inverse() for row in reversed(rows)]
    try:
        if arguments.proof is not None:
            lines = list(differences(arguments.proof, rows, apply))
            sys.stdout.write("".join(f"{line}\n" for line in lines) or "the same code\n")
            return bool(lines)
        changed = apply(rows)
    except TableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{len(rows)} definitions, {len(changed)} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
