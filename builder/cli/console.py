# SPDX-License-Identifier: Apache-2.0
"""Consoles and tables of the command line: rich on a terminal, plain text elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

NUMBERS = (
    "ms",
    "seconds",
    "count",
    "bytes",
    "tokens",
    "texts",
    "sequences",
    "rows",
    "replaced",
    "missed",
    "x",
    "times padfree's",
)
"""Endings of the names of columns that hold numbers."""
LINE_S = 10.0
"""Seconds between two lines that say what is being done, where there is no terminal."""
PLAIN_WIDTH = 120  # where there is no terminal, so that logs do not break lines at 80 columns


def visible(text: str) -> str:
    """A text that no terminal takes for commands: what cannot be printed, but for lines and tabs, is escaped.

    Names of models and nodes, messages of plugins and what stands in files come from anybody.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)


class OutputConsole(Console):
    """rich's console on stdout, whose errors say that it was stdout which could not be written."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's."""
        try:
            super().print(*objects, **options)
        except BrokenPipeError:
            raise  # by a reader that has seen enough
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from error


def output_console() -> Console:
    """Writes to stdout."""
    return OutputConsole(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def error_console() -> Console:
    """Writes to stderr."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else PLAIN_WIDTH, highlight=False)


def print_error(message: str) -> None:
    """Prints one paragraph on stderr, unwrapped where no terminal wraps it."""
    error_console().print(Text.assemble(("padfree: error: ", "bold red"), visible(message)), soft_wrap=True)


def print_line(text: str, console: Console | None = None) -> None:
    """Prints text as it is, on stdout if nothing else is said: brackets are no markup, long lines are not cut."""
    (console or output_console()).print(Text(visible(text)), soft_wrap=True)


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Prints names with what belongs to them, indented, one below the other; a terminal breaks long ones in columns."""
    console = output_console()
    if not console.is_terminal:
        width = max(map(len, pairs), default=0)
        for name, text in pairs.items():
            print_line(f"  {name:<{width}}  {text}")
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in pairs.items():
        grid.add_row(f"  {name}", Text(visible(text)))
    console.print(grid)


class Working:
    """Shows what is being done until the context ends: rich's status, for texts that are no markup.

    Without a terminal, updates are lines, one every LINE_S at most.
    """

    def __init__(self, console: Console, text: str) -> None:
        self._console = console
        self._rich_status = console.status(Text(visible(text)))
        self._line_s = -LINE_S

    def update(self, text: str) -> None:
        """Shows another text."""
        self._rich_status.update(Text(visible(text)))
        if not self._console.is_terminal and time.monotonic() - self._line_s >= LINE_S:
            self._line_s = time.monotonic()
            print_line(text, self._console)

    def __enter__(self) -> Working:
        self._rich_status.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._rich_status.stop()


class LineHandler(logging.Handler):
    """Writes every message to stderr as one line, however long: those who read logs wrap them, or do not."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one."""
        try:
            print_line(self.format(record), error_console())
        except Exception:
            self.handleError(record)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table of plain text on stdout; columns of numbers, as their names end, are right-aligned."""
    table = Table(title=Text(visible(title)), title_justify="left")
    for column in columns:
        numeric = column.endswith(NUMBERS)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    output_console().print(table)


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Prints a table of two columns, one fact a row; lists and objects become short text."""
    print_table(title, ("fact", "value"), [(name, short(value)) for name, value in facts.items()])


def print_phases(seconds: Mapping[str, float]) -> None:
    """Prints where the time went."""
    rows = [(name, f"{phase_seconds:.2f}") for name, phase_seconds in seconds.items()]
    print_table("where the time went", ("phase", "seconds"), rows)


def short(value: Any) -> str:
    """A value as one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {short(item)}" for name, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return "; ".join(short(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value == "" else str(value)


def number_text(value: float | None, style: str) -> str:
    """A number in a style of `format`, or a dash for what there is not."""
    return "-" if value is None else format(value, style)


def count_text(number: int, what: str) -> str:
    """A number of things: "1 text", "2 texts"."""
    return f"{number} {what}{'s' * (number != 1)}"
