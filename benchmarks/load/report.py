# SPDX-License-Identifier: Apache-2.0
"""What the records of a contest say: a table, and latency against load as a picture.

python -m benchmarks.load.report benchmarks/results/h200/load.jsonl --plot docs/images/load.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages.style import GREY, MARKERS, OURS, PEER_COLOURS, STYLE, machine, save

from .limit import holds

Record = Mapping[str, Any]
OWN = "packed"
HEAD = ("server", "requests/s", "texts/s", "tokens/s", "p50 ms", "p99 ms")


def read(path: Path) -> dict[str, list[Record]]:
    """The contest's steps by server."""
    servers: dict[str, list[Record]] = {}
    for text in path.read_text("utf-8").splitlines():
        record = json.loads(text)
        if record["mode"] == "contest":
            servers.setdefault(record["label"], []).append(record)
    return servers


def best(records: Sequence[Record]) -> Record | None:
    """The step of the most tokens a second within the limit that was set."""
    within = [record for record in records if holds(record, record["p99_limit_ms"])]
    return max(within, key=lambda record: record["tokens_per_s"], default=None)


def table(servers: Mapping[str, Sequence[Record]]) -> str:
    """Every server's best step as Markdown, and the ratio to the best peer."""
    rows = [HEAD, ("---", *["---:"] * (len(HEAD) - 1))]
    found = {name: step for name, records in servers.items() if (step := best(records))}
    for name, step in found.items():
        rates = (f"{step[rate]:,.0f}" for rate in ("answered_per_s", "texts_per_s", "tokens_per_s"))
        rows.append((name, *rates, *(f"{step['latency_ms'][share]:.1f}" for share in ("p50", "p99"))))
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    peers = [step["tokens_per_s"] for name, step in found.items() if name != OWN]
    if OWN in found and peers:
        text += f"\n{OWN} over the better padded server: {found[OWN]['tokens_per_s'] / max(peers):.2f}\n"
    return text


def plot(servers: Mapping[str, Sequence[Record]], path: Path) -> None:
    """The 99th percentile over the tokens answered a second; a line ends where the server could not keep up."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    with mpl.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(6.4, 3.4))
        colours = iter(PEER_COLOURS)
        for marker, (name, records) in zip(MARKERS, servers.items(), strict=False):
            steps = sorted((r for r in records if r["latency_ms"]["p99"]), key=lambda r: r["offered_per_s"])
            colour = OURS if name == OWN else next(colours)
            across = [step["tokens_per_s"] / 1e6 for step in steps]
            axes.plot(across, [step["latency_ms"]["p99"] for step in steps], marker=marker, color=colour, label=name)
        limits = {record["p99_limit_ms"] for records in servers.values() for record in records}
        for limit in limits:
            axes.axhline(limit, color=GREY, linestyle=":", linewidth=1)
        first = next(iter(servers.values()))
        axes.set(
            yscale="log",
            xlabel="million tokens answered a second",
            ylabel="p99 latency, ms",
            title=f"BERT-base in Triton, {first[0]['texts']} texts a request, {first[0]['shape']}, {machine(first)}",
        )
        axes.grid(visible=True)
        axes.legend()
        save(figure, path)


def main() -> None:
    """Prints the table; draws the picture where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--plot", type=Path, help="write the picture to this .svg file")
    arguments = parser.parse_args()
    servers = read(arguments.records)
    print(table(servers), end="")
    if arguments.plot:
        plot(servers, arguments.plot)


if __name__ == "__main__":
    main()
