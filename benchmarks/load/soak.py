# SPDX-License-Identifier: Apache-2.0
"""Steady load for a long time: no answer may be lost or swapped, and the server's memory may not grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .client import Outcome
from .fleet import Fleet
from .memory import gpu_mib, host_mib

SETTLED = 0.3
"""Share of the time after which memory should be stable: by then buffers and graphs of all sizes are made."""


def soak(
    fleet: Fleet, rate: float, minutes: float, pid: int, *, step_s: float, tell: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Offers `rate` requests per second in steps without pauses, and measures memory after each.

    Args:
        fleet: sends the requests.
        rate: requests per second.
        minutes: the duration.
        pid: the server's process.
        step_s: the length of a step in seconds.
        tell: is called with the record of every step.

    Returns:
        The total: requests by outcome, the slowest step's p99, and how memory changed after it should have settled.
    """
    began = time.monotonic()
    records: list[dict[str, Any]] = []
    while (elapsed := time.monotonic() - began) < 60 * minutes:
        step = fleet.step(rate, step_s, warm_up_s=0.0)
        memory = {"host_mib": round(host_mib(pid), 1), "gpu_mib": gpu_mib()}
        records.append({"elapsed_s": round(elapsed, 1), **step, **memory})
        tell(records[-1])
    return {**total(records), "minutes": round((time.monotonic() - began) / 60, 1)}


def total(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The total of the steps of a soak."""
    names = ("requests", *(outcome.name.lower() for outcome in Outcome))
    settled = records[int(SETTLED * len(records)) :]
    p99s = [record["latency_ms"]["p99"] for record in records]
    sums: dict[str, Any] = {name: sum(record[name] for record in records) for name in names}
    sums["worst_p99_ms"] = None if None in p99s else max(p99s)
    for name in ("host_mib", "gpu_mib"):
        values = [record[name] for record in settled]
        if None not in values:
            sums[name] = {
                "first": values[0],
                "last": values[-1],
                "most": max(values),
                "per_hour": _slope(settled, name),
            }
    return sums


def _slope(records: Sequence[dict[str, Any]], name: str) -> float | None:
    """Growth per hour of a straight line through the records; None for fewer than three."""
    if len(records) < 3:
        return None
    hours = np.array([record["elapsed_s"] for record in records]) / 3600
    return round(float(np.polyfit(hours, [record[name] for record in records], 1)[0]), 1)
