# SPDX-License-Identifier: Apache-2.0
"""The attention benchmark's records as a table of plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention_cases import CUDNN, FA2

HEADINGS = ("case", "ours us", "TFLOP/s", FA2, CUDNN, "best peer", "ratio", "error", "targets")


def microseconds(value: float | None) -> str:
    """A time in us, or a dash."""
    return "-" if value is None else f"{value:.1f}"


def best_peer(record: Mapping[str, Any]) -> tuple[str, float] | None:
    """Name and time in us of the fastest peer that was right."""
    peers: Mapping[str, float] = record["peers_us"]
    if not peers:
        return None
    name = min(peers, key=lambda peer: peers[peer])
    return name, peers[name]


def verdict(target: Mapping[str, Any]) -> str:
    """One target in words."""
    state = {True: "met", False: "MISSED", None: "not measured"}[target["met"]]
    return f"{target['text']}{' (stretch)' if target['stretch'] else ''}: {state}"


def cells(record: Mapping[str, Any]) -> tuple[str, ...]:
    """One row of the table; ratio is the best peer's time over ours."""
    best, ours_us, peers = best_peer(record), record["ours_us"], record["peers_us"]
    return (
        record["case"],
        microseconds(ours_us),
        microseconds(record["tflops"]),
        microseconds(peers.get(FA2)),
        microseconds(peers.get(CUDNN)),
        f"{best[0]} {best[1]:.1f}" if best else "-",
        f"{best[1] / ours_us:.2f}" if best and ours_us else "-",
        f"{record['max_error']:.1e}" if record["max_error"] is not None else record["unavailable"].get("ours", "-"),
        "; ".join(verdict(target) for target in record["targets"]),
    )


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """All records, one line each, under their headings."""
    lines = [HEADINGS, *(cells(record) for record in records)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
