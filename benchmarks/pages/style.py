# SPDX-License-Identifier: Apache-2.0
"""What all pictures share: colours, and how a picture is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import LIMIT, PADFREE, TENSORRT, Record

INK = "#24292f"
"""Text and axes: contrast 14 : 1 on the pictures' white background, which they keep on dark pages."""
GREY = "#6e7781"
"""Everything else that is grey: bars and lines of the limit."""
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
"""Colours of Okabe and Ito, then of Paul Tol, which people who confuse red and green can distinguish."""
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
"""Peers of whole models that have the same colours and marks in all pictures."""
OTHER_COLOURS = PEER_COLOURS[len(USUAL) :]
"""Colours that none of these has."""


def styles_of(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and mark by the name in the legend: usual peers, other named ones, padfree, and the limit."""
    peers = dict.fromkeys([*USUAL, *(name for name in names if name not in (PADFREE, LIMIT))])
    return {
        **dict(zip(peers, zip(PEER_COLOURS, MARKERS, strict=True), strict=False)),
        PADFREE: (OURS, ""),
        LIMIT: (GREY, "|"),
    }


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb", as the guidelines for accessible pages define it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(colour: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21; text needs 4.5."""
    darker, lighter = sorted((luminance(colour), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def on_white(colour: str, opacity: float) -> str:
    """A colour of this opacity as it looks on white."""
    mixed = (255 + (int(colour[at : at + 2], 16) - 255) * opacity for at in (1, 3, 5))
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def readable_ink(colour: str, opacity: float = 1.0) -> str:
    """White or INK, whichever has more contrast with this colour."""
    ground = on_white(colour, opacity)
    return max(("#ffffff", INK), key=lambda ink: contrast(ink, ground))


def machine(records: Sequence[Record]) -> str:
    """What the records were measured on, for the title."""
    return ", ".join(dict.fromkeys(str(record["gpu"]) for record in records if "gpu" in record))


def save(figure: Any, path: Path) -> None:
    """Writes the picture, with the same bytes for the same records."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
