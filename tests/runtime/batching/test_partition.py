# SPDX-License-Identifier: Apache-2.0
"""The dynamic program against every way to cut a small queue, and within its limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.runtime import SessionError
from padfree.runtime.batching import Budget, CostTable, partition

LENGTHS, BATCHES = (8, 32, 64), (1, 2, 4, 8)

cells = st.lists(st.lists(st.floats(0.1, 10), min_size=4, max_size=4), min_size=3, max_size=3)
queues = st.lists(st.integers(0, 64), max_size=7)
limits = st.none() | st.integers(1, 200)
most = st.none() | st.integers(1, 8)


def table(interface: str, rows: list[list[float]]) -> CostTable:
    return CostTable(interface, LENGTHS, BATCHES, tuple(tuple(row) for row in rows))


def set_partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """Every way to split the items into groups (Bell numbers: 877 for seven)."""
    if not items:
        yield []
        return
    for groups in set_partitions(items[1:]):
        yield [[items[0]], *groups]
        for at in range(len(groups)):
            yield [*groups[:at], [items[0], *groups[at]], *groups[at + 1 :]]


def neighbours(items: list[int]) -> Iterator[list[list[int]]]:
    """Every way to cut the sorted items into runs of neighbours."""
    for cuts in range(1 << max(0, len(items) - 1)):
        groups: list[list[int]] = []
        for at, item in enumerate(items):
            if at and not cuts >> (at - 1) & 1:
                groups[-1].append(item)
            else:
                groups.append([item])
        yield groups


def is_allowed(run: list[int], budget: Budget) -> bool:
    return len(run) == 1 or budget.takes(len(run), sum(run), max(run))


def cheapest(ways: Iterator[list[list[int]]], costs: CostTable, budget: Budget) -> float:
    fitting = (way for way in ways if all(is_allowed(run, budget) and len(run) <= BATCHES[-1] for run in way))
    return min(sum(costs.run_seconds(run) for run in way) for way in fitting)


def cost_of(lengths: list[int], costs: CostTable, budget: Budget) -> float:
    """The cost of a partition, after checking that it has every sequence once and keeps to the budget."""
    runs = partition(lengths, costs, budget)
    assert sorted(at for run in runs for at in run) == list(range(len(lengths)))
    members = [[lengths[at] for at in run] for run in runs]
    assert all(is_allowed(run, budget) for run in members)
    return sum(costs.run_seconds(run) for run in members)


@settings(max_examples=60, deadline=None)
@given(queues, cells, limits, most)
def test_padded_runs_are_the_cheapest_of_all(
    lengths: list[int], rows: list[list[float]], max_tokens: int | None, max_sequences: int | None
) -> None:
    costs, budget = table("padded", rows), Budget(max_tokens, max_sequences, counts_padding=True)
    best = cheapest(set_partitions(lengths), costs, budget)
    assert cost_of(lengths, costs, budget) == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(queues, cells, limits, most)
def test_packed_runs_are_the_cheapest_of_neighbours(
    lengths: list[int], rows: list[list[float]], max_tokens: int | None, max_sequences: int | None
) -> None:
    costs, budget = table("packed", rows), Budget(max_tokens, max_sequences)
    best = cheapest(neighbours(sorted(lengths)), costs, budget)
    assert cost_of(lengths, costs, budget) == pytest.approx(best)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 64), min_size=1100, max_size=1500), st.sampled_from(["padded", "packed"]), limits)
def test_long_queues_are_cut_within_the_budget(lengths: list[int], interface: str, max_tokens: int | None) -> None:
    rows = [[0.5 + length * batch / 100 for batch in BATCHES] for length in LENGTHS]
    budget = Budget(max_tokens, None, counts_padding=interface == "padded")
    alone = sum(table(interface, rows).run_seconds([length]) for length in lengths)
    assert cost_of(lengths, table(interface, rows), budget) <= alone


def test_unlike_lengths_part_and_like_ones_join() -> None:
    rows = [[0.5 + length * batch / 100 for batch in BATCHES] for length in LENGTHS]
    runs = partition([64, 8, 64, 8, 8], table("padded", rows), Budget(counts_padding=True))
    assert runs == [[1, 3, 4], [0, 2]]


def test_table_and_budget_of_different_models_are_refused() -> None:
    rows = [[1.0, 2.0, 3.0, 4.0]] * 3
    with pytest.raises(SessionError, match="the cost table is of a padded model, but counts_padding of the budget"):
        partition([1], table("padded", rows), Budget())
