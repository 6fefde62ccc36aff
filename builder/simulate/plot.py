# SPDX-License-Identifier: Apache-2.0
"""Latency over throughput, one line per contender."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from padfree.contract.installation import install_command

from ..errors import BuildError
from ..files import write_files
from .report import Summary

MARKERS = "osD^vPX<>p"
STYLE: Any = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "padfree", "legend.frameon": False}


def check_plot(path: Path) -> None:
    """Checks what a picture needs before the work that it shows.

    Raises:
        BuildError: matplotlib is missing or does not know the suffix.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise BuildError(f"--plot needs matplotlib; install it with: {install_command('bench')}") from error
    if path.suffix.lower().removeprefix(".") not in FigureCanvasBase.get_supported_filetypes():
        raise BuildError(f"{path}: no picture has this suffix; name it .svg, .png or .pdf")


def draw(summaries: Sequence[Summary], title: str, path: Path) -> None:
    """Draws the 99th percentile of latency over answered requests per second; the suffix gives the format.

    Raises:
        BuildError: as check_plot, or the file cannot be written.
    """
    from matplotlib import figure, rc_context

    names = list(dict.fromkeys(summary.contender for summary in summaries))
    with rc_context(STYLE):
        picture = figure.Figure(figsize=(8, 4.5))
        axes = picture.add_subplot()
        for at, name in enumerate(names):
            of_contender = [item for item in summaries if item.contender == name]
            points = [(item.answered_rps, item.p99_ms) for item in of_contender if item.p99_ms is not None]
            axes.plot(
                *zip(*points, strict=True), marker=MARKERS[at % len(MARKERS)], markersize=4, linewidth=1.2, label=name
            )
        axes.set_yscale("log")
        axes.set_xlabel("answered requests per second")
        axes.set_ylabel("latency, 99th percentile, ms")
        axes.set_title(title, loc="left")
        axes.grid(alpha=0.25)
        axes.legend()
        save_picture(picture, path, bbox_inches="tight")


def save_picture(picture: Any, path: Path, **options: Any) -> None:
    """Writes a picture of the kind that the suffix says, with the same bytes for the same contents."""
    content, kind = io.BytesIO(), path.suffix.lower().removeprefix(".")
    picture.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None, **options)
    write_files([(path, content.getvalue())])
