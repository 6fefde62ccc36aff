# SPDX-License-Identifier: Apache-2.0
"""GPU times of calls back to back, by events."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

ROUNDS = 9
RUNS_PER_ROUND = 10


def mean_ms(work: Callable[[], object], runs: int) -> float:
    """GPU time of one call, the mean of some back to back between two events."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(runs):
        work()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / runs


def time_ms(work: Callable[[], object]) -> float:
    """Median GPU time of one call over rounds of back-to-back calls."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    return statistics.median(mean_ms(work, RUNS_PER_ROUND) for _ in range(ROUNDS))
