# SPDX-License-Identifier: Apache-2.0
"""How a batch is divided among devices: by what its parts cost."""

from __future__ import annotations

import numpy as np

from ..batching.costs import CostTable
from ..batching.dealing import snake
from ..batching.partition import partition
from ..budget import Budget
from ..rows import IntArray

HAND_OVER_S = 3e-4
"""What dividing a batch costs: threads that wake, and rows that are put in order. 0.3 ms for 64 rows on an AMD EPYC."""


def divide(lengths: IntArray, costs: CostTable, budget: Budget, *, devices: int, idle: int) -> list[IntArray]:
    """Divides a batch.

    A batch of one run is divided among devices that have nothing to do, as far as that makes it faster. A larger one
    makes as many runs for every device, of nearly equal cost. Padded models get runs of neighbours in length.

    Args:
        lengths: tokens of each sequence.
        costs: what runs cost.
        budget: what a run takes.
        devices: how many are in use, one or more.
        idle: how many of them have nothing to do.

    Returns:
        Indexes of the sequences of each run, the costliest run first.
    """
    everything = np.arange(lengths.size, dtype=np.int64)
    if _fits(lengths, budget):
        devices_used = 1 if budget.counts_padding else _count_devices(lengths, costs, idle)
        return [everything] if devices_used == 1 else snake(lengths, devices_used)
    if budget.counts_padding:
        runs = [np.asarray(run, dtype=np.int64) for run in partition(lengths.tolist(), costs, budget)]
    else:
        runs = _runs(lengths, budget, devices)
    return sorted(runs, key=lambda run: -costs.run_seconds(lengths[run]))


def _count_devices(lengths: IntArray, costs: CostTable, idle: int) -> int:
    """How many devices make this run end first."""
    tokens, squares = float(lengths.sum()), float(np.square(lengths).sum())
    times = [
        float(costs.mixed_seconds(lengths.size / count, tokens / count, squares / count)) + HAND_OVER_S * (count > 1)
        for count in range(1, min(idle, lengths.size) + 1)
    ]
    return 1 + times.index(min(times)) if times else 1


def _runs(lengths: IntArray, budget: Budget, devices: int) -> list[IntArray]:
    """As few runs as the budget allows, as many for every device."""
    tokens = max(1, int(lengths.sum()))
    least = max(-(-tokens // (budget.max_tokens or tokens)), -(-lengths.size // (budget.max_sequences or lengths.size)))
    count = -(-least // devices) * devices
    while count < lengths.size:
        runs = snake(lengths, count)
        if all(_fits(lengths[run], budget) for run in runs):
            return runs
        count += devices
    return [np.array([at], dtype=np.int64) for at in range(lengths.size)]


def _fits(lengths: IntArray, budget: Budget) -> bool:
    """Whether this is one run: a sequence alone always is, and so is nothing."""
    return lengths.size < 2 or budget.takes(lengths.size, int(lengths.sum()), int(lengths.max()))
