# SPDX-License-Identifier: Apache-2.0
"""Shows what a build measured of engines with other GEMMs and norms (builder/engine/measurements.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .console import print_line, print_table
from .summary import Line

DAMAGED_TEXT = "what is kept of the measurement of GEMMs and norms is damaged"
_ERRORS = (KeyError, TypeError, AttributeError, ValueError, IndexError)
"""What reading metadata may raise that anybody may have written."""


def print_measured(engine: Mapping[str, Any]) -> None:
    """A table of the engines that were timed, and TensorRT's padded one; nothing where none were."""
    entry = engine.get("measured")
    if entry is None:
        return
    try:
        columns = ("GEMMs", "norms", *(f"{_request(item)}, ms" for item in entry["requests"]), "remark")
        rows = [_row(item, "kept" * (at == entry["kept"]), columns) for at, item in enumerate(entry["engines"])]
        padded = entry["padded"]
        last = _number(padded["short_ms"]) if "short_ms" in padded else "-"
        rows.append(("TensorRT's, padded", "-", "-", last, str(padded.get("problem", ""))))
    except _ERRORS:
        print_line(DAMAGED_TEXT)
        return
    print_table("engines that were timed", columns, rows)


def measured_lines(engine: Mapping[str, Any]) -> list[Line]:
    """The measurements in one line; no line if nothing was timed."""
    entry = engine.get("measured")
    if entry is None:
        return []
    try:
        if entry["kept"] is None:
            return []
        choice, count = entry["engines"][entry["kept"]], sum("ms" in item for item in entry["engines"])
        pairs = zip(choice["ms"], entry["requests"], strict=True)
        times = [f"{_number(time_ms)} ms for {_request(item)}" for time_ms, item in pairs]
        padded = entry["padded"].get("short_ms")
        beside = "" if padded is None else f" (padded TensorRT: {_number(padded)})"
        choice_text = f"GEMMs by {choice['linear']}, norms {choice['norms']}, of {count} measured"
    except _ERRORS:
        return [("fastest", DAMAGED_TEXT)]
    return [("fastest", f"{choice_text}: {', '.join(times)}{beside}")]


def _row(item: Mapping[str, Any], remark: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    times = [_number(ms) for ms in item["ms"]] if "ms" in item else ["-"] * (len(columns) - 3)
    return (str(item["linear"]), str(item["norms"]), *times, str(item.get("problem", remark)))


def _request(item: Mapping[str, Any]) -> str:
    texts = f"{item['sequences']} texts" if item["sequences"] > 1 else "one text"
    return f"{texts} of {item['tokens']} tokens"


def _number(milliseconds: float) -> str:
    return f"{milliseconds:.3g}"
