# SPDX-License-Identifier: Apache-2.0
"""The table of the benchmark of memory-bound kernels, from recorded lines.

python -m benchmarks.kernels.row_report benchmarks/results/h200/rows.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import read

COPY_SHARE = 0.8
"""Share of a copy's bandwidth that kernels have to reach for FULL_SIZE tokens."""
FULL_SIZE = 16384
COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "kernel": lambda record: record["case"],
    "us": lambda record: f"{record['ours_us']:.1f}",
    "TB/s": lambda record: f"{record['bytes'] / record['ours_us'] / 1e6:.2f}",
    "of a copy's bandwidth": lambda record: f"{record['copy_share']:.0%}{'' if reaches_copy(record) else ' MISSED'}",
    "PyTorch, us": lambda record: f"{record['peers_us']['PyTorch']:.1f}",
    "from the cache, us": lambda record: f"{record['chain_us']:.2f}",
    "launched plainly, us": lambda record: f"{record['chain_plain_us']:.2f}",
}
"""Heading and cell of each column."""


def reaches_copy(record: Mapping[str, Any]) -> bool:
    """Whether a kernel keeps up with a copy of equal bytes, which is required for FULL_SIZE tokens."""
    return bool(record["tokens"] != FULL_SIZE or record["copy_share"] >= COPY_SHARE)


def cells(record: Mapping[str, Any]) -> list[str]:
    """One row of the table."""
    return [cell(record) for cell in COLUMNS.values()]


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """The records as a Markdown table."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS), *map(cells, records)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON lines that benchmarks.kernels.rows wrote")
    print(table(read(parser.parse_args().results)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
