# SPDX-License-Identifier: Apache-2.0
"""What `padfree inspect --texts --plot` draws: how long texts are, and what part of a batch would be padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .simulate.plot import STYLE, save_picture
from .text_lengths import BATCHES, TextLengths

TEXT, GRID, BAR, COME, SORTED = "#1c2024", "#d9dde3", "#2563a8", "#b4512b", "#2563a8"
"""Colours on white: text and what lines say have a contrast of more than 4.5 : 1."""
_MOST_BINS = 40


def draw_text_lengths(lengths: TextLengths, title: str, path: Path) -> None:
    """Draws a histogram of lengths beside the share of padding by batch size; the suffix says which kind of picture.

    Raises:
        BuildError: as check_plot, or the file cannot be written.
    """
    from matplotlib import figure, rc_context

    colours: Any = {"text.color": TEXT, "axes.labelcolor": TEXT, "xtick.color": TEXT, "ytick.color": TEXT}
    with rc_context({**STYLE, **colours, "axes.spines.top": False, "axes.spines.right": False, "font.size": 10}):
        picture = figure.Figure(figsize=(9, 3.9), layout="constrained", facecolor="white")
        picture.suptitle(title, x=0.01, ha="left", fontweight="bold")
        left, right = picture.subplots(1, 2)
        _draw_histogram(left, lengths)
        _draw_padding(right, lengths)
        save_picture(picture, path, dpi=150)


def _draw_histogram(axes: Any, lengths: TextLengths) -> None:
    longest = max(lengths.lengths)
    axes.hist(lengths.lengths, bins=min(longest, _MOST_BINS), range=(0, longest), color=BAR)
    axes.axvline(lengths.mean, color=TEXT, linestyle="--", linewidth=1)
    axes.annotate(
        f"mean {lengths.mean:.0f}", (lengths.mean, 1.0), (4, -12), xycoords=("data", "axes fraction"),
        textcoords="offset points",
    )  # fmt: skip
    axes.set_xlabel("tokens in a text")
    axes.set_ylabel("texts")
    axes.set_title(f"{len(lengths.lengths)} texts, the longest {longest} tokens", loc="left", fontsize=10)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)


def _draw_padding(axes: Any, lengths: TextLengths) -> None:
    ticks = list(range(len(BATCHES)))
    series = (("in the file's order", COME, "o", False), ("sorted by length", SORTED, "s", True))
    for name, colour, marker, in_order in series:
        shares = [100 * lengths.padding(batch, in_order_of_length=in_order) for batch in BATCHES]
        axes.plot(ticks, shares, color=colour, marker=marker, label=name)
        for tick, share in zip(ticks, shares, strict=True):
            if share >= 1:
                axes.annotate(f"{share:.0f} %", (tick, share), (0, 6), textcoords="offset points", ha="center")
    axes.set_xticks(ticks, [str(batch) for batch in BATCHES])
    axes.set_ylim(0, 100)
    axes.set_xlabel("texts in a batch")
    axes.set_ylabel("padding, % of what is computed")
    axes.set_title("What padding would cost", loc="left", fontsize=10)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left")
