# SPDX-License-Identifier: Apache-2.0
"""What all pictures share: colours, and how a picture is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import LIMIT, PADFREE, TENSORRT, Record

INK = "#24292f"
"""Text and axes: 14 : 1 on the pictures' white ground, which they keep where a page is dark."""
GREY = "#6e7781"
"""What is no text: bars and lines of the limit."""
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
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}

USUAL = (
    TENSORRT,
    "padfree, padded interface",
    "PyTorch eager, padded",
    "torch.compile, padded",
    "PyTorch varlen, compiled",
    "NVIDIA varseqlen plugins",
)
"""Peers of whole models, whose colours and marks are the same in all pictures."""


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
    figure.savefig(path, facecolor="white", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
