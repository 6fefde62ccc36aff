# SPDX-License-Identifier: Apache-2.0
"""Errors as inline SVG: points over few or many labels, logarithmic, with the tolerance as a dashed line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 300
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 70, 20, 30, 46
COLOURS = tuple(f"var(--series-{number})" for number in range(5))  # of the page, for light and dark
LEGENDS_A_ROW, LEGEND_HEIGHT = 3, 18
SMALLEST = 1e-8  # zero has no logarithm: exact values lie on the lower edge
MAX_LABELS = 12


@dataclass(frozen=True)
class Series:
    """One line of a plot: a value per label, or None. The tolerance has the line's colour."""

    name: str
    values: tuple[float | None, ...]
    tolerance: float


def plot(title: str, labels: Sequence[str], ticks: Mapping[int, str], series: Sequence[Series]) -> str:
    """An SVG element.

    Args:
        title: read out by screen readers.
        labels: what lies along the x axis, shown where the pointer rests on a value.
        ticks: index of a label -> text below the axis; some are left out where there are too many.
        series: each with a value per label; values that are not finite are drawn as crosses at the upper edge.
    """
    finite = [v for item in series for v in item.values if v is not None and math.isfinite(v)]
    limits = [max(v, SMALLEST) for v in [*finite, *(item.tolerance for item in series)]]
    low = math.floor(math.log10(min(limits, default=SMALLEST)))
    high = max(low + 1, math.ceil(math.log10(max(limits, default=1.0)) + 0.05))
    axes = _Axes(len(labels), low, high)
    parts = [_grid(axes), _labels(axes, ticks)]
    parts += [_line(axes, item, COLOURS[at % len(COLOURS)], labels) for at, item in enumerate(series)]
    above = LEGEND_HEIGHT * max(0, math.ceil(len(series) / LEGENDS_A_ROW) - 1)
    parts.append(_legend(series, above))
    return (
        f'<svg viewBox="0 {-above} {WIDTH} {HEIGHT + above}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


@dataclass(frozen=True)
class _Axes:
    count: int
    low: int
    high: int

    def x(self, index: int) -> float:
        span = WIDTH - LEFT_MARGIN - RIGHT_MARGIN
        return LEFT_MARGIN + span * (index + 0.5) / max(self.count, 1)

    def y(self, value: float) -> float:
        span = HEIGHT - TOP_MARGIN - BOTTOM_MARGIN
        share = (math.log10(max(value, SMALLEST)) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM_MARGIN - span * min(max(share, 0.0), 1.0)


def _grid(axes: _Axes) -> str:
    lines = []
    for exponent in range(axes.low, axes.high + 1):
        y = axes.y(10.0**exponent)
        lines.append(f'<line x1="{LEFT_MARGIN}" x2="{WIDTH - RIGHT_MARGIN}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        lines.append(
            f'<text x="{LEFT_MARGIN - 8}" y="{y + 4:.1f}" text-anchor="end">10<tspan dy="-5" class="small">'
            f"{exponent}</tspan></text>"
        )
    return "".join(lines)


def _labels(axes: _Axes, ticks: Mapping[int, str]) -> str:
    step = max(1, math.ceil(len(ticks) / MAX_LABELS))
    y = HEIGHT - BOTTOM_MARGIN + 20
    return "".join(
        f'<text x="{axes.x(at):.1f}" y="{y}" text-anchor="middle">{escape(label)}</text>'
        for at, label in list(ticks.items())[::step]
    )


def _line(axes: _Axes, series: Series, colour: str, labels: Sequence[str]) -> str:
    points = [(at, v) for at, v in enumerate(series.values) if v is not None]
    path, pen = [], "M"
    for at, value in enumerate(series.values):
        if value is None or not math.isfinite(value):
            pen = "M"  # the line has a gap where there is no number
            continue
        path.append(f"{pen}{axes.x(at):.1f} {axes.y(value):.1f}")
        pen = "L"
    tolerance_y = axes.y(series.tolerance)
    marks = [_mark(axes, at, v, colour, f"{series.name}, {labels[at]}: {v:.2e}") for at, v in points]
    return (
        f'<line x1="{LEFT_MARGIN}" x2="{WIDTH - RIGHT_MARGIN}" y1="{tolerance_y:.1f}" y2="{tolerance_y:.1f}" '
        f'style="stroke: {colour}" stroke-dasharray="6 4" opacity="0.7"/>'
        f'<path d="{"".join(path)}" fill="none" style="stroke: {colour}" stroke-width="1.6"/>{"".join(marks)}'
    )


def _legend(series: Sequence[Series], above: int) -> str:
    """Names of lines, in rows that begin so far above the plot."""
    parts = []
    for number, item in enumerate(series):
        row, column = divmod(number, LEGENDS_A_ROW)
        x, y = LEFT_MARGIN + column * (WIDTH - LEFT_MARGIN) // LEGENDS_A_ROW, 8 - above + row * LEGEND_HEIGHT
        parts.append(
            f'<rect x="{x}" y="{y}" width="10" height="10" style="fill: {COLOURS[number % len(COLOURS)]}"/>'
            f'<text x="{x + 16}" y="{y + 9}">{escape(item.name)}</text>'
        )
    return "".join(parts)


def _mark(axes: _Axes, at: int, value: float, colour: str, text: str) -> str:
    x = axes.x(at)
    tip = f"<title>{escape(text)}</title>"
    if math.isfinite(value):
        return f'<circle cx="{x:.1f}" cy="{axes.y(value):.1f}" r="3" style="fill: {colour}">{tip}</circle>'
    y = TOP_MARGIN
    return (
        f'<path d="M{x - 4:.1f} {y - 4}L{x + 4:.1f} {y + 4}M{x + 4:.1f} {y - 4}L{x - 4:.1f} {y + 4}" '
        f'style="stroke: {colour}" stroke-width="2">{tip}</path>'
    )
