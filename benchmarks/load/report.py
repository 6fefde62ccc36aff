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

from .steps import holds

OWN = ("packed", "native")
HEAD = ("server", "requests/s", "texts/s", "tokens/s", "p50 ms", "p99 ms")


def read(path: Path) -> dict[str, list[Record]]:
    """The last contest's steps by server: those of one commit."""
    steps = _of_mode(path, "contest")
    servers: dict[str, list[Record]] = {}
    for record in steps:
        if record.get("commit") == steps[-1].get("commit"):
            servers.setdefault(record["label"], []).append(record)
    return servers


def session_rate(path: Path) -> float | None:
    """Tokens per second of a Session without a server, measured beside the last contest."""
    commit = _of_mode(path, "contest")[-1].get("commit")
    found = [record for record in _of_mode(path, "session rate") if record.get("commit") == commit]
    return max((float(record["tokens_per_s"]) for record in found), default=None)


def _of_mode(path: Path, mode: str) -> list[Record]:
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [record for record in records if record["mode"] == mode]


def best(records: Sequence[Record]) -> Record | None:
    """The step with the most tokens per second within the limit that was set."""
    within = [record for record in records if holds(record, record["p99_limit_ms"])]
    return max(within, key=lambda record: record["tokens_per_s"], default=None)


def table(servers: Mapping[str, Sequence[Record]], session: float | None = None) -> str:
    """Each server's best step as Markdown, and our servers' ratios to the best peer and to a Session's tokens/s."""
    rows = [HEAD, ("---", *["---:"] * (len(HEAD) - 1))]
    results = {name: step for name, records in servers.items() if (step := best(records))}
    for name, step in results.items():
        rates = (f"{step[rate]:,.0f}" for rate in ("answered_per_s", "texts_per_s", "tokens_per_s"))
        rows.append((name, *rates, *(f"{step['latency_ms'][share]:.1f}" for share in ("p50", "p99"))))
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    peers = [step["tokens_per_s"] for name, step in results.items() if name not in OWN]
    for name in OWN:
        if name in results and peers:
            text += f"\n{name} over the better padded server: {results[name]['tokens_per_s'] / max(peers):.2f}\n"
        if name in results and session:
            share = results[name]["tokens_per_s"] / session
            text += f"\n{name} over a Session without a server ({session:,.0f} tokens/s): {share:.2f}\n"
    return text


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="JSON lines that python -m benchmarks.load.contest wrote")
    records = parser.parse_args().records
    print(table(read(records), session_rate(records)), end="")


if __name__ == "__main__":
    main()
