# SPDX-License-Identifier: Apache-2.0
"""What all pictures share: records, colours, and how a picture is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

GREY = "#7d8590"
OURS = "#0072b2"
MARKERS = "osD^vPX<>p"
PEER_COLOURS = (
    "#d55e00",
    "#56b4e9",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#999933",
    "#44aa99",
    "#aa4499",
    "#8b949e",
    "#882255",
)
"""Colours of Okabe and Ito, then of Paul Tol: people who confuse red and green tell them apart."""
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "padfree",
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}

TENSORRT, PADFREE, LIMIT = "TensorRT, padded", "padfree", "limit: matrix products of packed tokens alone"
USUAL = (
    TENSORRT,
    "padfree, padded interface",
    "PyTorch eager, padded",
    "torch.compile, padded",
    "PyTorch varlen, compiled",
    "NVIDIA varseqlen plugins",
)
"""Peers of whole models, whose colours and marks are the same in all pictures."""

Record = Mapping[str, Any]

EARLIER, EARLIER_COMMITS = "earlier_peers", "earlier_commits"


def read(path: Path) -> list[Record]:
    """The records of a file, the last one of every case, in the order in which the cases came first.

    Peers that only lines before the last one have, measured in another run, are under EARLIER, and the commits of
    those lines under EARLIER_COMMITS.
    """
    lines: dict[str, list[Record]] = {}
    for line in filter(str.strip, path.read_text("utf-8").splitlines()):
        record = json.loads(line)
        lines.setdefault(record["case"], []).append(record)
    return [_last(of_case) for of_case in lines.values()]


def _last(lines: Sequence[Record]) -> Record:
    *before, last = lines
    known = {name: (time, line) for line in before for name, time in _peers(line).items() if name not in _peers(last)}
    commits = sorted({line["commit"] for _, line in known.values() if "commit" in line})
    return {**last, EARLIER: {name: time for name, (time, _) in known.items()}, EARLIER_COMMITS: commits}


def _peers(record: Record) -> dict[str, float]:
    return record.get("peers_us") or record.get("peers_ms") or {}


def earlier_times_of(record: Record) -> dict[str, float]:
    """Milliseconds, by the name in the legend, of peers that were measured in an earlier run alone."""
    now = times_of(record)
    earlier = times_of({**record, "peers_ms": record.get(EARLIER, {}), "limit_ms": None})
    return {name: time_ms for name, time_ms in earlier.items() if name not in now}


def times_of(record: Record) -> dict[str, float]:
    """Milliseconds by the name in the legend: padded TensorRT's better engine, the other peers, padfree, the limit."""
    times: dict[str, float] = {}
    for title, time_ms in record["peers_ms"].items():
        name = TENSORRT if title.startswith("TensorRT padded") else title
        times[name] = min(time_ms, times.get(name, time_ms))
    return {**times, PADFREE: record["ours_ms"], **({LIMIT: record["limit_ms"]} if record["limit_ms"] else {})}


def styles_of(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and mark by the name in the legend: the usual peers, others that are named, padfree, the limit."""
    peers = dict.fromkeys([*USUAL, *(name for name in names if name not in (PADFREE, LIMIT))])
    return {
        **dict(zip(peers, zip(PEER_COLOURS, MARKERS, strict=True), strict=False)),
        PADFREE: (OURS, ""),
        LIMIT: (GREY, "|"),
    }


def machine(records: Sequence[Record]) -> str:
    """What the records were measured on, for the title."""
    return ", ".join(dict.fromkeys(str(record["gpu"]) for record in records if "gpu" in record))


def save(figure: Any, path: Path) -> None:
    """Writes the picture, the same bytes for the same records."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
