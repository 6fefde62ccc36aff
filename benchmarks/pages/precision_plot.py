# SPDX-License-Identifier: Apache-2.0
"""The picture of accuracy against speed: one point per precision, and a line for one that has not been timed.

Speed is that of BERT-base at 16 x 512 (sets precisions and fp8 of the sweep), accuracy that of the model that
`benchmarks.accuracy` trained: how many answers in a hundred are not those of fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import Record

from .style import GREY, INK, OTHER_COLOURS, OURS, STYLE, machine, save

PRECISIONS = ("fp32", "fp16", "bf16", "fp8")
BATCH = ("bert-base", 16, 512)
"""Model, B and S that are timed."""
WIDE = 8
"""From this ratio of the longest time to the shortest on, the axis of times is logarithmic."""
SETS = ("fp8", "precisions")
"""Sets of the sweep with such records; later ones take precedence."""
COLOURS = dict(zip(PRECISIONS, (GREY, OURS, *OTHER_COLOURS), strict=False))


@dataclass(frozen=True)
class Point:
    """One precision: milliseconds per batch, and how many per cent of the answers change."""

    precision: str
    time_ms: float
    changed_percent: float


def times_of(records: Sequence[Record]) -> dict[str, float]:
    """Milliseconds per batch by precision."""
    chosen = [record for record in records if (record["model"], record["batch"], record["seq_len"]) == BATCH]
    return {record["precision"]: record["ours_ms"] for name in SETS for record in chosen if record["set"] == name}


def changes_of(record: Record) -> dict[str, float]:
    """Percentage of answers that change, in the task with the most changes, by precision; 0 for fp32 by definition."""
    scores = {name.removeprefix("packed "): score for name, score in record["scores"].items()}
    changed = {name: max(scores[name]["changed_percent"].values()) for name in PRECISIONS if name in scores}
    return {"fp32": 0.0, **changed}


def points(timed: Sequence[Record], trained: Sequence[Record]) -> list[Point]:
    """The precisions that were both timed and scored.

    Args:
        timed: records of the sweep.
        trained: records of `benchmarks.accuracy`; the last one of the plain variant counts.
    """
    plain = [record for record in trained if record["variant"] == "plain"]
    if not plain:
        return []
    times, changes = times_of(timed), changes_of(plain[-1])
    return [Point(name, times[name], changes[name]) for name in PRECISIONS if name in times and name in changes]


def changes_without_times(timed: Sequence[Record], trained: Sequence[Record]) -> dict[str, float]:
    """Percentage of answers that change, by precision, for precisions that were scored but not timed."""
    plain = [record for record in trained if record["variant"] == "plain"]
    times = times_of(timed)
    return {name: changed for name, changed in changes_of(plain[-1]).items() if name not in times} if plain else {}


def draw_precisions(timed: Sequence[Record], trained: Sequence[Record], path: Path) -> bool:
    """Draws the picture; returns False if fewer than two precisions have records."""
    result = points(timed, trained)
    if len(result) < 2:
        return False
    from matplotlib import pyplot, ticker

    lines = changes_without_times(timed, trained)
    shortest, longest = min(point.time_ms for point in result), max(point.time_ms for point in result)
    logarithmic = longest > WIDE * shortest
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(6.4, 3.6))
        for point in result:
            axes.scatter(point.time_ms, point.changed_percent, s=70, color=COLOURS[point.precision], zorder=3)
            label = f"{point.precision}: {point.time_ms:.2f} ms, {point.changed_percent:.2g} %"
            right = point.time_ms == longest
            axes.annotate(
                label,
                (point.time_ms, point.changed_percent),
                xytext=(-9 if right else 9, 5),
                textcoords="offset points",
                ha="right" if right else "left",
                color=INK,
            )
        if logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
            axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        left = shortest / 1.3 if logarithmic else 0
        axes.set_xlim(left, (1.3 if logarithmic else 1.08) * longest)
        for name, changed in lines.items():
            axes.axhline(changed, color=COLOURS[name], linestyle="dotted", linewidth=1.5)
            label = f"{name}: {changed:.2g} %, time not measured"
            axes.annotate(label, (left, changed), xytext=(6, 4), textcoords="offset points", color=INK)
        axes.set_ylim(-0.15, 1.2 * max(*(point.changed_percent for point in result), *lines.values()))
        axes.grid(visible=True)
        axes.set_xlabel("ms per batch, BERT-base, 16 texts of up to 512 tokens (lower is better)")
        axes.set_ylabel("answers that differ from\nfp32, % (lower is better)")
        axes.set_title(f"Accuracy against speed, {machine(timed)}", loc="left")
        save(figure, path)
    return True
