# SPDX-License-Identifier: Apache-2.0
"""The picture of a contest of servers: latency against load.

    python -m benchmarks.pages.load_plot benchmarks/results/h200/load.jsonl docs/images/load.svg

Needs matplotlib.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.load.report import read
from benchmarks.records import Record

from .style import GREY, MARKERS, OTHER_COLOURS, OURS, PEER_COLOURS, STYLE, machine, save

LABELS = {
    "packed": "padfree",
    "native": "padfree, its own backend",
    "padded": "TensorRT, padded",
    "padded-sorted": "TensorRT, padded, similar lengths together",
}


def plot(servers: Mapping[str, Sequence[Record]], path: Path) -> None:
    """The 99th percentile over the tokens answered per second; a line ends where the server could not keep up."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot, ticker

    with mpl.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(6.4, 3.4))
        colours = iter((PEER_COLOURS[0], *OTHER_COLOURS))  # TensorRT's own colour, and others that no peer has
        main = "native" if "native" in servers else "packed"
        for marker, (name, records) in zip(MARKERS, servers.items(), strict=False):
            steps = sorted((r for r in records if r["latency_ms"]["p99"]), key=lambda r: r["offered_per_s"])
            colour = OURS if name == main else next(colours)
            across = [step["tokens_per_s"] / 1e6 for step in steps]
            axes.plot(
                across,
                [step["latency_ms"]["p99"] for step in steps],
                marker=marker,
                color=colour,
                label=LABELS.get(name, name),
            )
        limits = {record["p99_limit_ms"] for records in servers.values() for record in records}
        for limit in limits:
            axes.axhline(limit, color=GREY, linestyle=":", linewidth=1)
            axes.annotate(
                f"allowed: {limit:g} ms", (0.55, limit), xycoords=("axes fraction", "data"), ha="center", va="bottom"
            )
        first = next(iter(servers.values()))
        axes.set(
            yscale="log",
            xlabel="million tokens answered per second",
            ylabel="latency of 99 % of the requests,\nms (lower is better)",
        )
        axes.set_title(f"BERT-base in Triton, {first[0]['texts']} texts per request, {machine(first)}", loc="left")
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(visible=True)
        axes.legend()
        save(figure, path)


def main() -> None:
    """Draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="JSON lines that python -m benchmarks.load.contest wrote")
    parser.add_argument("picture", type=Path, help="the .svg file to write")
    arguments = parser.parse_args()
    plot(read(arguments.records), arguments.picture)


if __name__ == "__main__":
    main()
