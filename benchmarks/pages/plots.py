# SPDX-License-Identifier: Apache-2.0
"""Pictures of recorded measurements: attention beside its peers, and whole models.

    python -m benchmarks.pages.plots --results benchmarks/results/h200 --images docs/images

Reads attention.jsonl, end_to_end.jsonl and trained.jsonl, where they exist (of lines with the same case the last
counts), and writes attention.svg, end_to_end.svg (the targets), sweep.svg (the sets of cases that are curves) and
precisions.svg (accuracy against speed). Needs matplotlib.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attention.report import PAGE_PEERS
from benchmarks.pages.model_tables import NAMES
from benchmarks.records import EARLIER, LIMIT, PADFREE, Record, read, times_of

from .precision_plot import draw_precisions
from .style import INK, MARKERS, OURS, PEER_COLOURS, STYLE, machine, save, styles_of
from .sweep_plot import CURVES, draw_sweep

ROOT = Path(__file__).resolve().parents[2]
LABELS = 0.9
"""How far to the left of the axes titles start, above the names of rows, in widths of the axes."""
BAR_NAMES = {LIMIT: "limit: the GEMMs alone"}
"""Short forms of names that are too long for the space next to a bar."""


@dataclass(frozen=True)
class Bar:
    """One way of running a model: its name in the legend, its time, and its colour."""

    label: str
    time_ms: float
    colour: str


def ratios(record: Record, *, earlier: bool = False) -> dict[str, float]:
    """For every peer of this run, or of earlier ones, its time as a multiple of ours."""
    peers = record.get(EARLIER, {}) if earlier else record["peers_us"]
    return {name: time / record["ours_us"] for name, time in peers.items() if name in PAGE_PEERS}


WORDS = (
    (r"H (\d+), D 64,", r"\1 heads,"),
    (r"H (\d+), D (\d+),", r"\1 heads of \2,"),
    (r"H (\d+),", r"\1 heads,"),
    (r"B 1, length (\d+)", r"one text of \1 tokens"),
    (r"B (\d+), lengths? ([\d to]+)", r"\1 texts of \2 tokens"),
    (r"(\d+)k tokens of (\d+)", r"\1k tokens in texts of \2"),
    (r"one of (\d+) among (\d+) of (\d+)", r"one text of \1 tokens among \2 of \3"),
)
"""Shorthand in the records' cases, as patterns, and what it means."""


def in_words(case: str) -> str:
    """A case in a newcomer's words: "H 12, B 16, lengths 102 to 512" is "12 heads, 16 texts of 102 to 512 tokens"."""
    for pattern, words in WORDS:
        case = re.sub(pattern, words, case)
    return case


def bars(records: Sequence[Record]) -> list[list[Bar]]:
    """The bars of every model, the fastest first; a peer has the same colour in all of them."""
    results = [times_of(record) for record in records]
    styles = styles_of(name for times in results for name in times)
    return [
        [Bar(name, time_ms, styles[name][0]) for name, time_ms in sorted(times.items(), key=lambda item: item[1])]
        for times in results
    ]


def draw_attention(records: Sequence[Record], path: Path) -> None:
    """A row per case, a mark per peer: its time over ours on a logarithmic axis, hollow if from an earlier run."""
    from matplotlib import pyplot, ticker

    records = [record for record in records if record["ours_us"] and record["peers_us"]]
    now, then = [ratios(record) for record in records], [ratios(record, earlier=True) for record in records]
    names = [name for name in PAGE_PEERS if any(name in times for times in (*now, *then))]
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(5, 1.6 + 0.3 * len(records)))
        for name, marker, colour in zip(names, MARKERS, PEER_COLOURS, strict=False):
            axes.scatter([], [], s=28, marker=marker, color=colour, label=name, linewidths=0)
            for face, of_cases in (colour, now), ("none", then):
                rows = [row for row, times in enumerate(of_cases) if name in times]
                x = [of_cases[row][name] for row in rows]
                axes.scatter(x, rows, s=28, marker=marker, facecolors=face, edgecolors=colour, linewidths=1, zorder=3)
        axes.axvline(1.0, color=OURS, linewidth=1.5, label="padfree", zorder=2)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set_yticks(range(len(records)), [f"{in_words(r['case'])}: {r['ours_us']:.1f} us" for r in records])
        axes.invert_yaxis()
        axes.grid(axis="both")
        axes.set_xlabel("time of a peer / time of padfree (to the right of 1: padfree is faster)")
        hollow = "; hollow: from an earlier run" if any(then) else ""
        axes.set_title(
            f"Attention alone, fp16, {machine(records)}{hollow}\n"
            "left: the case, and the time of padfree; heads have 64 numbers unless given",
            loc="left",
            x=-LABELS,
        )
        figure.legend(loc="upper center", bbox_to_anchor=(0.3, 0.0), ncols=3)
        save(figure, path)


def draw_end_to_end(records: Sequence[Record], path: Path) -> None:
    """A panel per model, a bar per contender with its name next to it, the fastest on top; milliseconds per batch."""
    from matplotlib import pyplot

    rows = -(-len(records) // 2)
    with pyplot.rc_context(STYLE):
        figure, grid = pyplot.subplots(rows, 2, figsize=(8, 0.6 + 2.5 * rows), squeeze=False)
        panels = list(grid.flat)
        for axes, record, result in zip(panels, records, bars(records), strict=False):
            drawn = axes.barh(
                range(len(result)), [bar.time_ms for bar in result], height=0.75, color=[bar.colour for bar in result]
            )
            labels = [f"{bar.time_ms:.{2 if bar.time_ms < 10 else 1}f}" for bar in result]
            axes.bar_label(drawn, labels=labels, padding=3, color=INK)
            axes.set_yticks(range(len(result)), [BAR_NAMES.get(bar.label, bar.label) for bar in result])
            for text, bar in zip(axes.get_yticklabels(), result, strict=True):
                text.set_fontweight("bold" if bar.label == PADFREE else "normal")
            axes.invert_yaxis()
            axes.margins(x=0.12)
            axes.tick_params(axis="y", length=0)
            padding = 1 - record["tokens"] / record["slots"]
            texts = "one text of" if record["batch"] == 1 else f"{record['batch']} texts of up to"
            model = NAMES.get(record["model"], record["model"])
            axes.set_title(f"{model}: {texts} {record['seq_len']} tokens, {padding:.0%} padding", loc="left", x=-LABELS)
            axes.set_xlabel("ms per batch, lower is better")
        for axes in panels[len(records) :]:
            axes.remove()
        figure.suptitle(f"Time per batch, fp16, {machine(records)}", x=0.01, ha="left", fontsize=10)
        figure.tight_layout()
        save(figure, path)


@dataclass(frozen=True)
class Picture:
    """A picture: its file of records, which of these it shows, and what draws it."""

    source: str
    shows: Callable[[Record], bool]
    draw: Callable[[Sequence[Record], Path], None]


PICTURES: Mapping[str, Picture] = {
    "attention": Picture("attention", lambda _: True, draw_attention),
    "end_to_end": Picture("end_to_end", lambda record: record["set"] == "targets", draw_end_to_end),
    "sweep": Picture("end_to_end", lambda record: record["set"] in CURVES, draw_sweep),
}


def draw_all(results: Path, images: Path) -> list[Path]:
    """Draws all pictures that have records; returns their paths."""
    written = []
    for name, picture in PICTURES.items():
        source = results / f"{picture.source}.jsonl"
        shown = list(filter(picture.shows, read(source))) if source.exists() else []
        if shown:
            picture.draw(shown, images / f"{name}.svg")
            written.append(images / f"{name}.svg")
    timed, trained = (
        read(results / f"{name}.jsonl") if (results / f"{name}.jsonl").exists() else []
        for name in ("end_to_end", "trained")
    )
    if draw_precisions(timed, trained, images / "precisions.svg"):
        written.append(images / "precisions.svg")
    return written


def main() -> int:
    """Draws the pictures; exit code 1 if there was nothing to draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "h200", help="JSON lines")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images", help="where pictures go")
    arguments = parser.parse_args()
    written = draw_all(arguments.results, arguments.images)
    for path in written:
        print(path)
    if not written:
        print(f"no records in {arguments.results}; `python -m benchmarks.attention` and `benchmarks.sweep` write them")
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
