# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML page that needs no network."""

from __future__ import annotations

import math
from pathlib import Path

from ...files import write_files
from .plots import Series, plot
from .report import Report, RunnerReport

ATTENTION = "PadfreeAttention"
TEMPLATE = "page.html.j2"


def write_page(report: Report, path: Path) -> None:
    """Writes the page, whole or not at all."""
    write_files([(path, render(report).encode())])


def render(report: Report) -> str:
    """The page's HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"error": _error, "cosine": _cosine}
    template = environment.get_template(TEMPLATE)
    return template.render(
        report=report,
        lengths=_lengths_plot(report),
        layers={runner.name: _layers_plot(runner) for runner in report.runners if runner.bisection is not None},
    )


def _lengths_plot(report: Report) -> str:
    """Worst relative error of any output, by length class."""
    found = {name for runner in report.runners for output in runner.outputs for name in output.classes}
    places = sorted(found, key=_class_start)
    series = []
    for runner in report.runners:
        worst = [
            max((output.classes[place].relative for output in runner.outputs if place in output.classes), default=None)
            for place in places
        ]
        series.append(Series(runner.name, tuple(worst), runner.tolerance.relative))
    return plot("largest relative error by length class", places, dict(enumerate(places)), series)


def _class_start(name: str) -> int:
    return int(name.removeprefix("over ").split("-")[0])


def _layers_plot(runner: RunnerReport) -> str:
    """Relative error of every compared tensor, in the model's order."""
    assert runner.bisection is not None
    trace = runner.bisection.trace
    series = Series(runner.name, tuple(item.errors.relative for item in trace), runner.tolerance.relative)
    attention = [at for at, item in enumerate(trace) if item.operator == ATTENTION]
    ticks = {at: f"layer {number}" for number, at in enumerate(attention)}
    places = [f"{item.operator} {item.tensor}" for item in trace]
    return plot("relative error by tensor, in the model's order", places, ticks, [series])


def _error(value: float) -> str:
    return f"{value:.2e}" if math.isfinite(value) else "not finite"


def _cosine(value: float) -> str:
    return f"{value:.7f}"
