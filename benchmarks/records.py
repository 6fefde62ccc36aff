# SPDX-License-Identifier: Apache-2.0
"""Reads recorded measurements: JSON lines, of which the last one of every case counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TENSORRT, PADFREE, LIMIT = "TensorRT, padded", "padfree", "limit: GEMMs of packed tokens alone"
Record = Mapping[str, Any]

EARLIER, EARLIER_COMMITS = "earlier_peers", "earlier_commits"


def read(path: Path) -> list[Record]:
    """The last record of every case in a file, in the order in which the cases first occur.

    Peers that only earlier lines of the case have, measured in another run, are under EARLIER, and the commits of these
    lines under EARLIER_COMMITS.
    """
    lines: dict[str, list[Record]] = {}
    for line in filter(str.strip, path.read_text("utf-8").splitlines()):
        record = json.loads(line)
        lines.setdefault(record["case"], []).append(record)
    return [_last(of_case) for of_case in lines.values()]


def of_last_commit(path: Path, wanted: Callable[[Record], bool] = lambda _: True) -> list[Record]:
    """The wanted records of a file with the last one's commit, the last one per case; none if there is no file."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    records = [record for record in map(json.loads, filter(str.strip, lines)) if wanted(record)]
    return list({record["case"]: record for record in records if record["commit"] == records[-1]["commit"]}.values())


def _last(lines: Sequence[Record]) -> Record:
    *before, last = lines
    known = {name: (time, line) for line in before for name, time in _peers(line).items() if name not in _peers(last)}
    commits = sorted({line["commit"] for _, line in known.values() if "commit" in line})
    return {**last, EARLIER: {name: time for name, (time, _) in known.items()}, EARLIER_COMMITS: commits}


def _peers(record: Record) -> dict[str, float]:
    return record.get("peers_us") or record.get("peers_ms") or {}


def in_earlier_run(figure: str) -> str:
    """How a table shows a figure that depends on an earlier run."""
    return f"({figure})"


def earlier_times_of(record: Record) -> dict[str, float]:
    """Milliseconds, by the name in the legend, of peers that were only measured in an earlier run."""
    now = times_of(record)
    earlier = times_of({**record, "peers_ms": record.get(EARLIER, {}), "limit_ms": None})
    return {name: time_ms for name, time_ms in earlier.items() if name not in now}


def times_of(record: Record) -> dict[str, float]:
    """Milliseconds by the name in the legend: the better engine of padded TensorRT, other peers, padfree, the limit."""
    times: dict[str, float] = {}
    for title, time_ms in record["peers_ms"].items():
        name = TENSORRT if title.startswith("TensorRT padded") else title
        times[name] = min(time_ms, times.get(name, time_ms))
    return {**times, PADFREE: record["ours_ms"], **({LIMIT: record["limit_ms"]} if record["limit_ms"] else {})}
