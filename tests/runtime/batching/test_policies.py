# SPDX-License-Identifier: Apache-2.0
"""Policies as pure functions of the queue and the time: what runs, what waits, and what comes first."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.runtime import SessionError
from padfree.runtime.batching import Beginning, Budget, CheapestCut, CostTable, FairShare, FirstCome, Policy, Waiting

LENGTHS, BATCHES = (1, 512), (1, 8)


def costs(interface: str = "packed") -> CostTable:
    """Costs of 1 ms per run and 0.01 ms per token."""
    rows = tuple(tuple(1 + length * batch / 100 for batch in BATCHES) for length in LENGTHS)
    return CostTable(interface, LENGTHS, BATCHES, rows)


def queue(*lengths: int, at_s: float = 0.0) -> list[Waiting]:
    return [Waiting(length, at_s) for length in lengths]


def drain(policy: Policy, lengths: list[int]) -> list[list[int]]:
    """The runs, as indexes, of requests that are all there from the beginning."""
    left = list(range(len(lengths)))
    runs = []
    while left:
        decision = policy.decide([Waiting(lengths[at], 0.0) for at in left], 1.0)
        run = [left[at] for at in decision.run]
        assert run
        runs.append(run)
        left = [at for at in left if at not in run]
    return runs


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 512), max_size=40),
    max_tokens=st.none() | st.integers(1, 2000),
    max_sequences=st.none() | st.integers(1, 10),
    padded=st.booleans(),
    name=st.sampled_from(["first come", "cheapest cut"]),
)
def test_everybody_runs_once_and_no_run_is_over_the_budget(
    lengths: list[int], max_tokens: int | None, max_sequences: int | None, padded: bool, name: str
) -> None:
    budget = Budget(max_tokens, max_sequences, padded)
    table = costs("padded" if padded else "packed")
    policy: Policy = FirstCome(budget) if name == "first come" else CheapestCut(table, budget, window=16)
    runs = drain(policy, lengths)
    flat = [at for run in runs for at in run]
    assert sorted(flat) == list(range(len(lengths)))
    for run in runs:
        members = [lengths[at] for at in run]
        assert len(run) == 1 or budget.takes(len(run), sum(members), max(members))
    if name == "first come":
        assert flat == sorted(flat)
    else:
        firsts = [run[0] for run in runs]
        assert firsts == sorted(firsts), "the oldest request is in the next run"


def test_first_come_waits_for_company_until_the_delay_is_over() -> None:
    policy = FirstCome(Budget(max_sequences=3), max_delay_s=0.5)
    assert policy.decide(queue(4, 4), 0.2) == ((), 0.5)
    assert policy.decide(queue(4, 4), 0.5).run == [0, 1]
    assert policy.decide(queue(4, 4, 4), 0.0).run == [0, 1, 2], "a full run starts at once"
    assert FirstCome(Budget(max_sequences=3)).decide(queue(4), 0.0).run == [0]


def test_a_full_token_budget_starts_at_once() -> None:
    policy = FirstCome(Budget(max_tokens=8), max_delay_s=0.5)
    assert policy.decide(queue(4, 5), 0.0).run == [0], "the second does not fit any more"
    assert policy.decide(queue(4, 4), 0.0) == ((), 0.5), "an empty sequence would still fit"


@pytest.mark.parametrize("name", ["first come", "cheapest cut"])
def test_nobody_waits_for_company_longer_than_half_the_slack(name: str) -> None:
    budget, table = Budget(max_sequences=3), costs()
    first = FirstCome(budget, max_delay_s=0.5, costs=table)
    policy: Policy = first if name == "first come" else CheapestCut(table, budget, max_delay_s=0.5)
    urgent = [Waiting(100, 0.0), Waiting(100, 0.0, deadline_s=0.102)]  # takes 2 ms alone
    assert policy.decide(urgent, 0.0) == ((), pytest.approx(0.05))


def test_patience_lets_the_urgent_pass_but_not_forever() -> None:
    waiting = [Waiting(4, 0.0), Waiting(4, 0.1, deadline_s=0.2), Waiting(4, 0.2)]
    assert FirstCome(Budget(max_sequences=1)).decide(waiting, 0.2).run == [0]
    assert FirstCome(Budget(max_sequences=1), patience_s=1.0).decide(waiting, 0.2).run == [1]
    assert FirstCome(Budget(max_sequences=1), patience_s=0.1).decide(waiting, 0.2).run == [0]
    assert CheapestCut(costs(), Budget(max_sequences=1), patience_s=1.0).decide(waiting, 0.2).run == [1]


def test_a_run_ends_before_the_deadlines_of_those_in_it() -> None:
    table = costs()
    waiting = [Waiting(100, 0.0, deadline_s=0.0035), *queue(100, 100, 100)]  # 1 ms, and 1 ms for each of them
    assert FirstCome(Budget(), costs=table).decide(waiting, 0.0).run == [0, 1]
    assert FirstCome(Budget()).decide(waiting, 0.0).run == [0, 1, 2, 3]
    assert CheapestCut(table, Budget()).decide(waiting, 0.0).run == [0, 1]
    assert FirstCome(Budget(), costs=table).decide(waiting, 0.1).run == [0], "never an empty run"


def test_the_cheapest_cut_runs_like_with_like() -> None:
    policy = CheapestCut(costs("padded"), Budget(max_sequences=8, counts_padding=True))
    waiting = queue(500, 10, 500, 10, 10)
    assert policy.decide(waiting, 0.0).run == [0, 2]
    assert policy.decide(waiting[1:], 0.0).run == [0, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FirstCome(Budget(), max_delay_s=-1.0), "max_delay_s is -1.0, allowed: 0 or more"),
        (lambda: FirstCome(Budget(), patience_s=math.nan), "patience_s is nan"),
        (lambda: CheapestCut(costs(), Budget(), window=0), "window is 0, allowed: 1 or more"),
        (lambda: CheapestCut(costs("padded"), Budget()), "the cost table is of a padded model"),
        (lambda: FirstCome(Budget(), costs=costs("padded")), "the cost table is of a padded model"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SessionError, match=message):
        make()


def test_what_requests_begin_with_counts_once_in_a_run() -> None:
    one, other = Beginning(b"one", 20), Beginning(b"other", 30)
    groups = [Waiting(40, 0.0, sequences=4, longest=30, beginning=one) for _ in range(3)]  # 20 tokens of their own
    waiting = [*groups, Waiting(5, 0.0), Waiting(40, 0.0, sequences=2, longest=40, beginning=other)]
    for budget, count in (
        (Budget(80), 3), (Budget(79), 2), (Budget(40), 1), (Budget(1), 1), (Budget(125), 5), (Budget(124), 4),
        (Budget(None, 13), 3), (Budget(None, 17), 5), (Budget(None, 16), 4), (Budget(None, 12), 2),
    ):  # fmt: skip
        assert FirstCome(budget).decide(waiting, 1.0).run == list(range(count)), budget
        turns = [request._replace(turn=float(at)) for at, request in enumerate(waiting)]
        assert FairShare(budget).decide(turns, 1.0).run == list(range(count)), budget
