# SPDX-License-Identifier: Apache-2.0
"""Queues in the orders of a policy give the same runs as a search of the whole queue, without such a search."""

from __future__ import annotations

import gc
import itertools
import math
import random
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.runtime.batching import Budget, CheapestCut, CostTable, Decision, FirstCome, Waiting
from padfree.runtime.batching.line import SPARE_ENTRIES, IndexedLine
from padfree.runtime.batching.policy import LinePolicy
from padfree.runtime.batching.queue import RequestQueue

LENGTHS, BATCHES = (1, 512), (1, 8)
COSTS = CostTable("packed", LENGTHS, BATCHES, tuple(tuple(1 + L * B / 100 for B in BATCHES) for L in LENGTHS))


class Entry:
    """A queued request."""

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting


def policies() -> list[LinePolicy]:
    results: list[LinePolicy] = []
    for patience_s, delay_s, costs in itertools.product((None, 0.5), (0.0, 0.2), (None, COSTS)):
        budget = Budget(max_tokens=60, max_sequences=4)
        results.append(FirstCome(budget, max_delay_s=delay_s, patience_s=patience_s, costs=costs))
    results += [CheapestCut(COSTS, Budget(max_sequences=5), max_delay_s=d, patience_s=p, window=7)
              for d, p in ((0.0, None), (0.2, 0.5))]  # fmt: skip
    return results


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), at=st.integers(0, len(policies()) - 1))
def test_a_kept_line_answers_as_a_list_does(seed: int, at: int) -> None:
    rng, policy = random.Random(seed), policies()[at]
    line = IndexedLine[int](policy.orders)
    there: dict[int, Waiting] = {}
    now_s = 0.0
    for number in range(150):
        now_s += rng.random() * 0.05
        if rng.random() < 0.6:
            deadline_s = now_s + rng.random() if rng.random() < 0.5 else math.inf
            sequences = rng.choice([1, 1, 3]) if isinstance(policy, FirstCome) else 1
            length = rng.randint(0, 40)
            there[number] = Waiting(length, now_s, deadline_s, sequences, min(length, 20))
            line.add(number, there[number], line.keys_of(there[number]))
        elif there and rng.random() < 0.3:
            gone = rng.choice(list(there))
            assert line.remove(gone)
            assert not line.remove(gone)
            del there[gone]
        sums = (sum(one.sequences for one in there.values()), sum(one.length for one in there.values()))
        assert (line.requests, line.sequences, line.tokens) == (len(there), *sums)
        names = list(there)
        assert [entry for entry, _ in line.in_order(None)] == names
        for order, key in policy.orders.items():
            assert [entry for entry, _ in line.in_order(order)] == sorted(names, key=lambda name: key(there[name]))
            assert line.least(order) == min(map(key, there.values()), default=math.inf)
        if not there:
            continue
        wanted = policy.decide(list(there.values()), now_s)
        seen, wake_s = policy.look(line, now_s)
        if not seen:
            assert wanted == Decision((), wake_s)
            continue
        run = [seen[index][0] for index in policy.pick([request for _, request in seen], now_s)]
        assert run == [names[index] for index in wanted.run]
        for entry in run:
            line.remove(entry)
            del there[entry]


def steps(work: Any) -> int:
    """The number of executed lines of Python, which does not depend on the machine's speed."""
    count = 0

    def trace(_frame: Any, _event: str, _value: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    gc.disable()  # destructors of what earlier tests left would count
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def steps_a_run(policy: LinePolicy, waiting: int, rounds: int) -> float:
    """Steps per run, with `waiting` requests in the queue, including a new request for each one that a run takes."""
    rng = random.Random(1)
    queue = RequestQueue[Entry](policy, max_requests=10**6, max_tokens=None)

    def ask() -> None:
        arrived_s = rng.random()  # long ago: none waits for others any more
        queue.put(Entry(Waiting(rng.randint(5, 40), arrived_s, 1e12 + arrived_s)))

    for _ in range(waiting):
        ask()
    return sum(steps(lambda: [ask() for _ in queue.take() or ()]) for _ in range(rounds)) / rounds


@pytest.mark.parametrize("at", range(len(policies())))
def test_the_cost_of_a_run_does_not_grow_with_the_queue(at: int) -> None:
    few, more, many = (steps_a_run(policies()[at], waiting, 40) for waiting in (100, 1000, 20_000))
    assert more < 1.5 * few
    assert many < 2 * few, "some more steps for the depth of heaps, no more"


def test_a_policy_that_looks_at_everybody_costs_more_with_every_request() -> None:
    """Shows that the test above can fail."""

    class Everybody(FirstCome):
        def decide(self, waiting: Any, now_s: float) -> Decision:
            return super().decide(sorted(waiting, key=lambda request: request.arrived_s), now_s)

    few, many = (steps_a_run(Everybody(Budget(max_sequences=4)), waiting, 4) for waiting in (100, 1000))
    assert many > 4 * few


def test_those_who_left_do_not_pile_up() -> None:
    policy = FirstCome(Budget(max_sequences=2), patience_s=1.0)
    line = IndexedLine[int](policy.orders)
    stays = Waiting(1, 0.0)
    line.add(-1, stays, line.keys_of(stays))
    for number in range(5000):
        request = Waiting(1, 1.0 + number)
        line.add(number, request, line.keys_of(request))
        line.remove(number)
    assert all(len(order._heap) <= 2 + SPARE_ENTRIES + 2 for _, order in line._orders.values())
    assert [entry for entry, _ in line.in_order("due")] == [-1]


def test_a_policy_with_a_decision_of_its_own_is_asked_for_it() -> None:
    class Last(FirstCome):
        def decide(self, waiting: Any, _now_s: float) -> Decision:
            return Decision([len(waiting) - 1])

    queue = RequestQueue[Entry](Last(Budget()), max_requests=10, max_tokens=None)
    entries = [Entry(Waiting(1, 0.0)) for _ in range(3)]
    for entry in entries:
        queue.put(entry)
    assert queue.take() == [entries[2]]
    assert len(queue) == 2
