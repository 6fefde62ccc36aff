# SPDX-License-Identifier: Apache-2.0
"""The highest request rate that a server sustains within a latency limit, found by offering more and less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

KEEPS_UP = 0.95
"""Share of the requests meant to leave in the window that have to be answered in it: otherwise a queue grows."""

Record = Mapping[str, Any]


def holds(record: Record, p99_ms: float) -> bool:
    """Whether all requests of a step were answered, correctly and in time."""
    p99 = record["latency_ms"]["p99"]
    keeps_up = record["answered_per_s"] >= KEEPS_UP * record["meant_per_s"]
    clean = not (record["wrong"] or record["refused"] or record["lost"])
    return clean and keeps_up and p99 is not None and p99 <= p99_ms


def find_limit(
    offer: Callable[[float], Record], p99_ms: float, start: float, *, growth: float = 1.6, refinements: int = 4
) -> Record | None:
    """The step with the highest rate that holds.

    Args:
        offer: measures a step at a rate.
        p99_ms: the limit.
        start: the first rate.
        growth: the factor from one rate to the next, until one does not hold; downwards if the first does not.
        refinements: how often the distance is halved after that.

    Returns:
        None if not even a hundredth of `start` holds.
    """
    good: Record | None = None
    rate, too_much = start, 0.0
    while good is None or not too_much:
        record = offer(rate)
        if holds(record, p99_ms):
            good = record
            rate *= growth
        else:
            too_much = rate
            if good is None and rate < start / 100:
                return None
            rate = rate / growth
    for _ in range(refinements):
        rate = (good["offered_per_s"] + too_much) / 2
        record = offer(rate)
        if holds(record, p99_ms):
            good = record
        else:
            too_much = rate
    return good
