# SPDX-License-Identifier: Apache-2.0
"""What the records of a contest say, as a table.

python -m benchmarks.load.report benchmarks/results/h200/load.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.records import Record

from .limit import holds

OWN = "packed"
HEAD = ("server", "requests/s", "texts/s", "tokens/s", "p50 ms", "p99 ms")


def read(path: Path) -> dict[str, list[Record]]:
    """The contest's steps by server."""
    servers: dict[str, list[Record]] = {}
    for text in path.read_text("utf-8").splitlines():
        record = json.loads(text)
        if record["mode"] == "contest":
            servers.setdefault(record["label"], []).append(record)
    return servers


def best(records: Sequence[Record]) -> Record | None:
    """The step with the most tokens per second within the limit that was set."""
    within = [record for record in records if holds(record, record["p99_limit_ms"])]
    return max(within, key=lambda record: record["tokens_per_s"], default=None)


def table(servers: Mapping[str, Sequence[Record]]) -> str:
    """Each server's best step as Markdown, and its ratio to the best peer's."""
    rows = [HEAD, ("---", *["---:"] * (len(HEAD) - 1))]
    results = {name: step for name, records in servers.items() if (step := best(records))}
    for name, step in results.items():
        rates = (f"{step[rate]:,.0f}" for rate in ("answered_per_s", "texts_per_s", "tokens_per_s"))
        rows.append((name, *rates, *(f"{step['latency_ms'][share]:.1f}" for share in ("p50", "p99"))))
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    peers = [step["tokens_per_s"] for name, step in results.items() if name != OWN]
    if OWN in results and peers:
        text += f"\n{OWN} over the better padded server: {results[OWN]['tokens_per_s'] / max(peers):.2f}\n"
    return text


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="JSON lines that python -m benchmarks.load.contest wrote")
    print(table(read(parser.parse_args().records)), end="")


if __name__ == "__main__":
    main()
