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
    environment.filters |= {"error": _error, "cosine": "{:.7f}".format}
    template = environment.get_template(TEMPLATE)
    return template.render(
        report=report,
        lengths=_lengths_plot(report),
        layers={runner.name: _layers_plot(runner) for runner in report.runners if runner.bisection is not None},
    )


def _lengths_plot(report: Report) -> str:
    """Worst relative error of any output, by length class."""
    classes = {name for runner in report.runners for output in runner.outputs for name in output.classes}
    length_classes = sorted(classes, key=lambda name: int(name.removeprefix("over ").split("-")[0]))
    series = []
    for runner in report.runners:
        worst = [
            max(
                (output.classes[length_class].relative for output in runner.outputs if length_class in output.classes),
                default=None,
            )
            for length_class in length_classes
        ]
        series.append(Series(runner.name, tuple(worst), runner.tolerance.relative))
    return plot("largest relative error by length class", length_classes, dict(enumerate(length_classes)), series)


def _layers_plot(runner: RunnerReport) -> str:
    """Relative error of every compared tensor, in the model's order."""
    assert runner.bisection is not None
    trace = runner.bisection.trace
    series = Series(runner.name, tuple(item.errors.relative for item in trace), runner.tolerance.relative)
    attention = [at for at, item in enumerate(trace) if item.operator == ATTENTION]
    ticks = {at: f"layer {number}" for number, at in enumerate(attention)}
    labels = [f"{item.operator} {item.tensor}" for item in trace]
    return plot("relative error by tensor, in the model's order", labels, ticks, [series])


def _error(value: float) -> str:
    return f"{value:.2e}" if math.isfinite(value) else "not finite"
