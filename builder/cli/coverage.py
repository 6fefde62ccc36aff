# SPDX-License-Identifier: Apache-2.0
"""Prints coverage reports: what was packed, what was not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from .console import facts_table, make_table, short


def print_coverage(console: Console, report: Mapping[str, Any]) -> None:
    """Prints a report's figures as one table, and every list of objects in it as a table of its own."""
    lists = {name: value for name, value in report.items() if _is_records(value)}
    console.print(facts_table("coverage", {name: value for name, value in report.items() if name not in lists}))
    for name, records in lists.items():
        columns = list(dict.fromkeys(key for record in records for key in record))
        rows = [[short(record.get(column)) for column in columns] for record in records]
        console.print(make_table(name.replace("_", " "), columns, rows))


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)
