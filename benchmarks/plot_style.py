# SPDX-License-Identifier: Apache-2.0
"""What all pictures share: records, colours, and how a picture is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

GREY = "#7d8590"
OURS = "#2f81f7"
MARKERS = "osD^vPX<>p"
PEER_COLOURS = (
    "#d29922",
    "#3fb950",
    "#db6d28",
    "#a371f7",
    "#f778ba",
    "#39c5cf",
    "#e5534b",
    "#b3a11f",
    "#8b949e",
    "#6e7681",
)
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

EARLIER = "earlier_peers"


def read(path: Path) -> list[Record]:
    """The records of a file, the last one of every case, in the order in which the cases came first.

    Peers that only lines before the last one have, measured in another run, are under EARLIER.
    """
    records: dict[str, Record] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.strip():
            record = json.loads(line)
            before, peers = records.get(record["case"], {}), _peers(record)
            known = {**before.get(EARLIER, {}), **_peers(before)}
            records[record["case"]] = {**record, EARLIER: {name: known[name] for name in known if name not in peers}}
    return list(records.values())


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
