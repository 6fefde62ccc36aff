# SPDX-License-Identifier: Apache-2.0
"""The cheapest way to cut a queue into runs: dynamic programming over lengths.

TurboTransformers (Fang et al., PPoPP 2021, arXiv:2010.05680), section 5: sort the requests by length; the best way to
serve the first i of them ends with some run of neighbours, and what comes before that run is served in its best way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add

import numpy as np
from padfree.runtime.errors import SessionError

from ..budget import Budget
from ..rows import IntArray, bounds_of
from .costs import CostTable

CHUNK = 1024
"""Sequences whose packed runs are costed at once: bounds memory to a few matrices of CHUNK x B."""


def partition(lengths: Sequence[int], costs: CostTable, budget: Budget) -> list[list[int]]:
    """Cuts a queue into runs whose costs add up to the least.

    On a padded model this is the least of all ways to cut it: a run costs what its longest sequence says, so trading
    members until runs are neighbours in length makes none longer. On a packed model it is the least among runs of
    neighbours. Of equal ways the one with larger runs is taken. Takes O(n log n + n B) for n sequences and runs of up
    to B: the budget's `max_sequences`, and never more than the table's largest batch.

    Args:
        lengths: tokens of each sequence, in any order.
        costs: what runs cost.
        budget: what a run takes; a sequence beyond it gets a run of its own.

    Returns:
        Runs of indexes into `lengths`, shorter sequences first; each index once.

    Raises:
        SessionError: the table is of a padded model and the budget counts no padding, or the other way round.
    """
    check_alike(costs, budget)
    if len(lengths) == 1:  # as on an idle server: there is nothing to choose
        return [[0]]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    widest = min(costs.batches[-1], budget.max_sequences or costs.batches[-1])
    endings = _padded_endings if costs.interface == "padded" else _packed_endings
    best = [0.0]  # best[i]: cost of the first i sequences
    sizes: list[int] = []  # sizes[i]: members of the run that ends with sequence i
    for row in endings(np.asarray(lengths, dtype=np.int64)[order], widest, costs, budget):
        ways = list(map(add, best[-len(row) :], row[-len(best) :]))
        cheapest = min(ways)
        best.append(cheapest)
        sizes.append(len(ways) - ways.index(cheapest))
    runs: list[list[int]] = []
    stop = len(order)
    while stop:
        start = stop - sizes[stop - 1]
        runs.append(order[start:stop])
        stop = start
    return runs[::-1]


def check_alike(costs: CostTable, budget: Budget) -> None:
    """Raises SessionError unless table and budget are of the same kind of model."""
    if budget.counts_padding != (costs.interface == "padded"):
        raise SessionError(
            f"the cost table is of a {costs.interface} model, but counts_padding of the budget is "
            f"{budget.counts_padding}; take Session.budget of the model that was measured"
        )


def _padded_endings(lengths: IntArray, widest: int, costs: CostTable, budget: Budget) -> Iterator[list[float]]:
    """For every sequence, in growing length: costs of the runs that may end with it, the largest run first."""
    distinct, which = np.unique(lengths, return_inverse=True)
    members = np.arange(widest, 0, -1)
    rows = [
        row[-_most(length, widest, budget) :]
        for length, row in zip(distinct.tolist(), costs.seconds(distinct[:, None], members).tolist(), strict=True)
    ]
    return (rows[at] for at in which.tolist())


def _most(length: int, widest: int, budget: Budget) -> int:
    """Sequences of a padded run that ends with this length; a run of one is always allowed."""
    if budget.max_tokens is None or not length:
        return widest
    return min(widest, max(1, budget.max_tokens // length))


def _packed_endings(lengths: IntArray, widest: int, costs: CostTable, budget: Budget) -> Iterator[list[float]]:
    """As _padded_endings, for packed runs, whose cost follows from all their lengths."""
    tokens_before, squares_before = bounds_of(lengths), bounds_of(lengths**2)
    members = np.arange(widest, 0, -1)
    for first in range(0, lengths.size, CHUNK):
        ends = np.arange(first, min(first + CHUNK, lengths.size))[:, None] + 1
        starts = np.maximum(ends - members, 0)
        tokens = tokens_before[ends] - tokens_before[starts]
        table = costs.mixed_seconds(members, tokens, squares_before[ends] - squares_before[starts])
        fits = np.full(tokens.shape, True) if budget.max_tokens is None else tokens <= budget.max_tokens
        # Larger runs hold more tokens, so those that fit stand at the end of a row.
        for row, limit in zip(table.tolist(), np.maximum(fits.sum(axis=1), 1).tolist(), strict=True):
            yield row[-limit:]
