# SPDX-License-Identifier: Apache-2.0
"""The tables of trained models, from recorded lines.

python -m benchmarks.accuracy.report benchmarks/results/h200/trained.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import read

from .scores import differences

REFERENCE = "padded PyTorch fp32"
ATTENTION = "PadfreeAttention"


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (heading, ["---"] * len(heading), *rows))


def scores(records: Sequence[Mapping[str, Any]]) -> str:
    """Percentage of right answers of every variant's models, and how many answers differ from PyTorch's."""
    tasks = list(records[0]["scores"][REFERENCE]["percent"])
    rows = []
    for record in records:
        for name, item in record["scores"].items():
            off = differences(item, record["scores"][REFERENCE])
            task = max(off, key=lambda name: abs(off[name]))
            shown = f"{off[task]:+.3f}" + (f" ± {item['margin'][task]:.3f}" if "margin" in item else "")
            changed = max(item["changed_percent"].values())
            figures = [f"{item['percent'][task]:.3f}" for task in tasks]
            last = ["-", "-"] if name == REFERENCE else [shown, f"{changed:.3f}"]
            rows.append([record["variant"], name, *figures, *last])
    return table(["variant", "model", *(f"{task}, %" for task in tasks), "off by, points", "other answers, %"], rows)


def layers(tensors: Sequence[Sequence[Any]]) -> list[list[float]]:
    """Relative errors of a model's tensors: the embedding's, then those of each layer, which starts with attention."""
    parts: list[list[float]] = [[]]
    for _, operator, error in tensors:
        if operator == ATTENTION:
            parts.append([])
        parts[-1].append(float(error))
    return parts


def errors(records: Sequence[Mapping[str, Any]]) -> str:
    """Smallest and largest relative error of the tensors of every layer."""
    heading, columns = ["layer"], []
    for record in records:
        for precision, inside in record["inside"].items():
            heading.append(f"{record['variant']}, {precision}")
            columns.append([f"{min(part):.1e} to {max(part):.1e}" for part in layers(inside["tensors"])])
    names = ["embedding", *(str(number) for number in range(len(columns[0]) - 1))]
    return table(heading, [list(row) for row in zip(names, *columns, strict=True)])


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON lines that benchmarks.accuracy wrote")
    records = read(parser.parse_args().results)
    print(scores(records), errors(records), sep="\n", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
