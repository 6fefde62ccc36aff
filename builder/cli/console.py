# SPDX-License-Identifier: Apache-2.0
"""Consoles and tables of the command line: rich on a terminal, plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 120  # where there is no terminal, so that logs do not break lines at 80 columns


def output_console() -> Console:
    """Writes to stdout."""
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def error_console() -> Console:
    """Writes to stderr."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else PLAIN_WIDTH, highlight=False)


def print_error(message: str) -> None:
    """Prints one paragraph on stderr, unwrapped where no terminal wraps it."""
    error_console().print(Text.assemble(("padfree: error: ", "bold red"), message), soft_wrap=True)


def print_line(console: Console, text: str) -> None:
    """Prints text as it is: brackets are no markup, long lines are not cut."""
    console.print(Text(text), soft_wrap=True)


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of plain text; columns whose name ends in a unit or "count" are right-aligned."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        numeric = column.endswith(("ms", "count", "bytes", "tokens", "x"))
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def facts_table(title: str, facts: Mapping[str, Any]) -> Table:
    """Two columns, one fact a row; lists and objects become short text."""
    return make_table(title, ("fact", "value"), [(name, short(value)) for name, value in facts.items()])


def short(value: Any) -> str:
    """A value as one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {short(item)}" for name, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return "; ".join(short(item) for item in value) or "none"
    return "-" if value is None else str(value)
