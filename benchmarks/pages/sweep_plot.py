# SPDX-License-Identifier: Apache-2.0
"""The picture of a sweep: peers' times as multiples of padfree's, over lengths, fill, tokens and models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import LIMIT, PADFREE, Record, times_of

from .model_tables import NAMES
from .style import OURS, STYLE, machine, save, styles_of

Number = Callable[[Record], float]
CURVES = ("length", "fill", "tokens", "model")
"""Sets of cases that the picture shows."""


def ratios(record: Record) -> dict[str, float]:
    """Time over ours for every peer, and for the limit where it is one."""
    times = {name: time_ms / record["ours_ms"] for name, time_ms in times_of(record).items() if name != PADFREE}
    if times.get(LIMIT, 0) > 1:
        del times[LIMIT]  # for few tokens padfree's kernels are faster than cuBLAS, so that it is no limit there
    return times


def panels(records: Sequence[Record]) -> list[tuple[str, str, list[Record], Number]]:
    """Title, label, records and horizontal position of every panel that has records."""
    sets: dict[str, list[Record]] = {}
    for record in records:
        name = record["set"]
        sets.setdefault(f"{name} {record['batch']}" if name == "length" else name, []).append(record)
    wanted: tuple[tuple[str, str, str, Number], ...] = (
        ("length 16", "16 texts, 40 % padding", "tokens of the longest text", lambda record: record["seq_len"]),
        ("length 1", "One text, 40 % padding", "tokens of the text with its padding", lambda record: record["seq_len"]),
        (
            "fill",
            "16 texts of up to 512 tokens",
            "share of the batch that is no padding",
            lambda record: record["tokens"] / record["slots"],
        ),
        (
            "tokens",
            "More and more texts of up to 512 tokens",
            "tokens per batch, without padding",
            lambda record: record["tokens"],
        ),
    )
    return [(title, label, sets[name], x) for name, title, label, x in wanted if name in sets]


def draw_sweep(records: Sequence[Record], path: Path) -> None:
    """Lines over lengths, fill and tokens, and a row of marks per model."""
    from matplotlib import pyplot

    lines, models = panels(records), [record for record in records if record["set"] == "model"]
    count = len(lines) + bool(models)
    drawn = [record for _, _, chosen, _ in lines for record in chosen] + models
    styles = styles_of(name for record in drawn for name in ratios(record))
    with pyplot.rc_context(STYLE):
        figure, grid = pyplot.subplots(-(-count // 2), 2, figsize=(7.6, 2.7 * -(-count // 2)), squeeze=False)
        axes = list(grid.flat)
        for panel, (title, label, chosen, x) in zip(axes, lines, strict=False):
            _draw_lines(panel, chosen, x, styles)
            panel.set_title(title, loc="left")
            panel.set_xlabel(label)
        if models:
            _draw_models(axes[len(lines)], models, styles)
        for panel in axes[count:]:
            panel.remove()
        for row in grid:
            row[0].set_ylabel("time / time of padfree\n(above 1: padfree is faster)")
        handles = {
            text: handle for panel in axes for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=3, bbox_to_anchor=(0.5, -0.06))
        figure.suptitle(
            f"Time of others divided by the time of padfree: BERT-base, fp16, {machine(records)}",
            x=0.01,
            ha="left",
            fontsize=10,
        )
        figure.tight_layout()
        save(figure, path)


def _draw_lines(panel: Any, records: Sequence[Record], x: Number, styles: dict[str, tuple[str, str]]) -> None:
    from matplotlib import ticker

    for name, (colour, marker) in styles.items():
        points = sorted((x(record), ratios(record)[name]) for record in records if name in ratios(record))
        if points:
            line = "none" if len(points) < len(records) and name != LIMIT else "solid"
            panel.plot(*zip(*points, strict=True), ls=line, color=colour, marker=marker, markersize=4, label=name)
    panel.axhline(1.0, color=OURS, linewidth=1.5, label="padfree")
    if max(map(x, records)) > 100 * min(map(x, records)):
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_ylim(0, 1.06 * panel.get_ylim()[1])
    panel.grid(axis="both")


def _draw_models(panel: Any, records: Sequence[Record], styles: dict[str, tuple[str, str]]) -> None:
    for name, (colour, marker) in styles.items():
        points = [(column, ratios(record)[name]) for column, record in enumerate(records) if name in ratios(record)]
        if points:
            panel.plot(*zip(*points, strict=True), ls="none", color=colour, marker=marker, label=name)
    panel.axhline(1.0, color=OURS, linewidth=1.5, label="padfree")
    labels = [f"{NAMES.get(record['model'], record['model'])}\n{record['ours_ms']:.2f} ms" for record in records]
    panel.set_xticks(range(len(records)), labels, fontsize=7)
    panel.set_ylim(bottom=0)
    panel.grid(axis="y")
    panel.set_title("Other models (and the time of padfree)", loc="left")
