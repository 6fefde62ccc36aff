# SPDX-License-Identifier: Apache-2.0
"""What all tables are written with: Markdown, notes on the records, and cells for times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.provenance import commits_of, made_with
from benchmarks.records import Record

UNMEASURED = "Not measured yet.\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def with_notes(head: Sequence[str], rows: Iterable[Sequence[str]], records: Sequence[Record]) -> str:
    """A table, and what its records were measured with; if there are several commits, a column names them."""
    if not records:
        return UNMEASURED
    if len(commits_of(records)) > 1:
        head = [*head, "commit"]
        rows = [[*row, record["commit"]] for row, record in zip(rows, records, strict=True)]
    return f"{table(head, rows)}\n{made_with(records)}\n"


def ms(time_ms: float | None) -> str:
    """A time with three digits, or a dash."""
    if time_ms is None:
        return "-"
    return f"{time_ms:.3f}" if time_ms < 1 else f"{time_ms:.2f}"


def ratio(numerator: float | None, denominator: float | None) -> str:
    """A quotient with two decimals, or a dash if a part is missing."""
    return f"{numerator / denominator:.2f}" if numerator and denominator else "-"
