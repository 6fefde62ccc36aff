# SPDX-License-Identifier: Apache-2.0
"""What the command lines that offer load have in common: options, steps that are printed and recorded, and limits."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.command import keep

KEEPS_UP = 0.95
"""Share of the requests meant to leave in the window that have to be answered in it: otherwise a queue grows."""
GROWTH, REFINEMENTS = 1.6, 4
"""The factor from one rate to the next until one does not hold, downwards if the first does not; and how often the
distance is halved after that."""

Step = dict[str, Any]
Tell = Callable[[Step], Step]
ALSO = ("host_mib", "gpu_mib", "cpu_model_s", "cpu_front_ends_s")
"""What some steps have besides rates and latencies."""


def load_parser(
    *parents: argparse.ArgumentParser, pool: int = 300, workers: int = 4, connections: int = 128, seconds: float = 3.0
) -> argparse.ArgumentParser:
    """A parser with the options of everything that offers load, as a parent of others."""
    parser = argparse.ArgumentParser(add_help=False, parents=parents)
    parser.add_argument("--pool", type=int, default=pool, help="different requests")
    parser.add_argument("--workers", type=int, default=workers, help="processes that send")
    parser.add_argument("--connections", type=int, default=connections, help="connections of each worker")
    parser.add_argument("--seconds", type=float, default=seconds, help="length of a step")
    parser.add_argument("--json", type=Path, help="append one line per step to this file")
    return parser


def make_tell(path: Path | None, setting: Mapping[str, Any], title: str = "") -> Tell:
    """A function that prints a step after the title, appends it to a file with the setting, and returns it."""

    def tell(step: Step) -> Step:
        print(f"{title}{line(step)}", flush=True)
        keep(path, {**setting, **step})
        return step

    return tell


def tell_limit(offer: Callable[[float], Step], p99_ms: float, start: float, title: str = "") -> None:
    """Finds the step with the highest rate within a latency, and prints it."""
    best = find_limit(offer, p99_ms, start)
    print(f"{title}within {p99_ms:g} ms p99: {line(best) if best else 'nothing'}", flush=True)


def holds(record: Mapping[str, Any], p99_ms: float) -> bool:
    """Whether all requests of a step were answered, correctly and in time."""
    p99 = record["latency_ms"]["p99"]
    keeps_up = record["answered_per_s"] >= KEEPS_UP * record["meant_per_s"]
    clean = not (record["wrong"] or record["refused"] or record["lost"])
    return clean and keeps_up and p99 is not None and p99 <= p99_ms


def find_limit(offer: Callable[[float], Step], p99_ms: float, start: float) -> Step | None:
    """The step with the highest rate that holds.

    Args:
        offer: measures a step at a rate.
        p99_ms: the limit.
        start: the first rate.

    Returns:
        None if not even a hundredth of `start` holds.
    """
    good: Step | None = None
    rate, too_much = start, 0.0
    while good is None or not too_much:
        record = offer(rate)
        if holds(record, p99_ms):
            good = record
            rate *= GROWTH
        else:
            too_much = rate
            if good is None and rate < start / 100:
                return None
            rate = rate / GROWTH
    for _ in range(REFINEMENTS):
        rate = (good["offered_per_s"] + too_much) / 2
        record = offer(rate)
        if holds(record, p99_ms):
            good = record
        else:
            too_much = rate
    return good


def line(step: Mapping[str, Any]) -> str:
    """A step in words."""
    latency = step["latency_ms"]
    bad = {name: step[name] for name in ("wrong", "refused", "lost") if step[name]}
    return ", ".join(
        [
            f"offered {step['offered_per_s']:.0f}/s",
            f"answered {step['answered_per_s']:.0f}/s",
            f"{step['tokens_per_s']} tokens/s",
            f"p50 {latency['p50']} p99 {latency['p99']} max {latency['max']} ms",
            f"sent late p99 {step['late_p99_ms']} ms",
            *(f"{name} {step[name]:.1f}" for name in ALSO if step.get(name) is not None),
            *([str(bad)] if bad else []),
        ]
    )
