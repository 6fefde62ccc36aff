# SPDX-License-Identifier: Apache-2.0
"""Prints coverage reports: what was packed, what was not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from .console import facts_table, make_table, print_line


def print_coverage(console: Console, report: Mapping[str, Any]) -> None:
    """Prints a coverage report: the figures, every pass, and the reason for everything that stayed padded."""
    facts = {
        "everything packed": "yes" if report["complete"] else "no",
        "linear layers on packed tokens": f"{100 * report['packed_gemm_share']:.1f} %",
        "outputs": report["outputs"],
        "plugins": report["plugins"],
    }
    console.print(facts_table("coverage", facts))
    rows = [(item["name"], str(item["replaced"]), str(len(item["missed"]))) for item in report["passes"]]
    console.print(make_table("passes", ("pass", "replaced count", "missed count"), rows))
    for item in report["passes"]:
        for miss in item["missed"]:
            print_line(console, f"{item['name']} missed {miss['node']}: {miss['reason']}")
    for island in report["islands"]:
        print_line(console, f"stays padded: {island['node']}: {island['reason']}")
