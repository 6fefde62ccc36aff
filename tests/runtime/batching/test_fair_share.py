# SPDX-License-Identifier: Apache-2.0
"""Clients share a queue: those who ask for little wait little, and all get equally many tokens."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import CancelledError

import pytest
from padfree.runtime.batching import Batcher, Budget, FairShare, QueueFullError, Waiting
from padfree.runtime.batching.pace import TIME_FRACTION, Pace
from padfree.runtime.batching.queue import RequestQueue

from .batcher_model import BREAKS, PATIENCE_S, Model, held_up

PART = 64


class Entry:
    """A queued request."""

    def __init__(self, client: int, length: int, shares: int = 1) -> None:
        self.waiting = Waiting(length, 0.0, client=client, shares=shares)


class Simulation:
    """A queue, its runs, and the tokens that each client got."""

    def __init__(self, budget: int = PART) -> None:
        self.queue = RequestQueue[Entry](FairShare(Budget(budget)), max_requests=10**6, max_tokens=None)
        self.had: Counter[int] = Counter()
        self.runs = 0

    def ask(self, client: int, tokens: int, shares: int = 1) -> list[Entry]:
        parts = [Entry(client, min(PART, tokens - at), shares) for at in range(0, tokens, PART)]
        self.queue.put(*parts)
        return parts

    def run(self) -> list[Entry]:
        taken = self.queue.take()
        assert taken is not None
        self.runs += 1
        for entry in taken:
            self.had[entry.waiting.client] += entry.waiting.length
        return taken


@pytest.mark.parametrize("crowd", [1, 4, 200])
def test_a_short_request_is_in_the_next_run_beside_any_number_of_large_ones(crowd: int) -> None:
    simulation = Simulation()
    for client in range(crowd):
        simulation.ask(client, 200 * PART)
    for _ in range(50):
        simulation.run()
        (one,) = simulation.ask(-1, 7)
        assert one in simulation.run()
        simulation.ask(random.Random(crowd).randrange(crowd), PART)


def test_clients_that_always_wait_get_as_much_as_each_other() -> None:
    simulation = Simulation()
    sizes = {0: PART, 1: 3 * PART, 2: 20 * PART, 3: 5}
    waiting: Counter[int] = Counter()
    for _ in range(6000):
        for client, size in sizes.items():
            while waiting[client] < 2 * size:  # one request more than the one that is being served
                simulation.ask(client, size)
                waiting[client] += size
        for entry in simulation.run():
            waiting[entry.waiting.client] -= entry.waiting.length
    even = sum(simulation.had.values()) / len(sizes)
    assert all(abs(tokens / even - 1) < 0.05 for tokens in simulation.had.values()), simulation.had


def test_new_clients_without_end_do_not_starve_one_with_much() -> None:
    simulation = Simulation(budget=8)
    for _ in range(100):
        simulation.ask(0, 10 * PART)
    newest = simulation.ask(1, 8)
    for client in range(2, 4000):
        if simulation.run() == newest:
            newest = simulation.ask(client, 8)
    assert simulation.had[0] > 0.4 * sum(simulation.had.values())


def test_a_group_of_small_requests_has_the_shares_of_all_of_them() -> None:
    simulation = Simulation()
    for client in range(30):
        simulation.ask(client, 10 * PART)
    (group,) = simulation.ask(-1, 60, shares=10)
    (one,) = simulation.ask(-2, 20)
    assert simulation.run() == [group]
    assert one in simulation.run()


def test_large_requests_are_finished_one_after_the_other() -> None:
    simulation = Simulation()
    requests = [simulation.ask(client, 10 * PART) for client in range(5)]
    runs = [simulation.run() for _ in range(50)]
    assert runs == [[part] for parts in requests for part in parts]


def test_what_is_cancelled_was_not_had() -> None:
    simulation = Simulation()
    simulation.ask(0, PART)
    for part in simulation.ask(1, 50 * PART):
        simulation.queue.discard(part)
    simulation.ask(0, 3 * PART)
    (mine,) = simulation.ask(1, PART)
    simulation.run()
    assert simulation.run() == [mine]


def test_nobody_is_remembered_for_ever() -> None:
    simulation = Simulation()
    simulation.ask(-1, 10**6)
    for client in range(2000):
        simulation.ask(client, 1)
        simulation.run()
    turns = simulation.queue._turns
    assert turns is not None
    assert len(turns._ends) < 200


def test_parts_of_a_group_are_taken_all_or_none(model: Model) -> None:
    with Batcher(model, FairShare(Budget(4)), runs=1, max_waiting_tokens=20) as batcher:
        held_up(model, batcher)
        first = batcher.submit_group([[2, 3]] * 8, part=Budget(4))
        with pytest.raises(QueueFullError, match="16 tokens wait and the request has 6, allowed: 15"):
            batcher.submit_group([[4, 5]] * 3, part=Budget(4))
        assert batcher.waiting == 4
        model.gate.set()
        assert [row.tolist() for row in first.result(PATIENCE_S)["tens"]] == [[20, 30]] * 8
    assert batcher.stats.tokens == 1 + 16


def test_parts_that_do_not_run_yet_are_cancelled(model: Model) -> None:
    with Batcher(model, FairShare(Budget(2)), runs=1) as batcher:
        held_up(model, batcher)
        whole = batcher.submit_group([[2]] * 50, part=Budget(2), client="gone")
        other = batcher.submit([3], client="there")
        assert whole.cancel()
        assert batcher.waiting == 1
        with pytest.raises(CancelledError):
            whole.result(PATIENCE_S)
        model.gate.set()
        assert other.result(PATIENCE_S)["tens"].tolist() == [30]
    assert model.runs == [[[1]], [[3]]]
    assert batcher.stats.cancelled == 25


def test_a_part_that_fails_takes_the_others_along(model: Model) -> None:
    with Batcher(model, FairShare(Budget(1)), runs=1) as batcher:
        held_up(model, batcher)
        whole = batcher.submit_group([[2], [BREAKS], *([[3]] * 20)], part=Budget(1))
        model.gate.set()
        with pytest.raises(RuntimeError, match="does not like it"):
            whole.result(PATIENCE_S)
    assert [[3]] not in model.runs[4:]


def test_what_cannot_be_answered_in_time_is_refused_whole_and_told_when_to_come_back(model: Model) -> None:
    with Batcher(model, FairShare(Budget(10)), runs=1, tokens_a_second=1.0) as batcher:
        held_up(model, batcher)
        batcher.submit_group([[2] * 10] * 4, part=Budget(10), deadline_s=100.0)  # nothing waits: it may try
        with pytest.raises(QueueFullError, match="allow more time") as caught:
            batcher.submit_group([[2] * 10] * 3, part=Budget(10), deadline_s=100.0)
        assert caught.value.retry_after_s == pytest.approx(40 + 30 - TIME_FRACTION * 100, rel=0.05)
        taken = batcher.submit_group([[2] * 10] * 3, part=Budget(10), deadline_s=6000.0)
        model.gate.set()
        assert len(taken.result(PATIENCE_S)["tens"]) == 3


def test_the_pace_is_that_of_times_without_a_pause() -> None:
    pace = Pace()
    assert pace.tokens_a_second(0.0) is None
    for second in range(10):
        pace.add_run(500, more=True, now_s=float(second))
    assert pace.tokens_a_second(9.0) == pytest.approx(500)
    pace.add_run(500, more=False, now_s=10.0)
    pace.add_run(1, more=True, now_s=60.0)  # nobody asked for anything meanwhile
    pace.add_run(200, more=True, now_s=61.0)
    assert pace.tokens_a_second(61.0) == pytest.approx(200, rel=0.01)
    assert Pace(900.0).tokens_a_second(0.0) == 900
    assert pace.tokens_a_second(1000.0) is None, "what was long ago tells nothing"


def test_there_is_room_for_who_asks_for_little_beside_any_number_who_ask_for_much(model: Model) -> None:
    with Batcher(model, FairShare(Budget(4)), runs=1, max_waiting_tokens=400, tokens_a_second=100.0) as batcher:
        held_up(model, batcher)

        def takes(client: int) -> bool:
            try:
                batcher.submit_group([[2] * 10] * 9, part=Budget(10), client=client, deadline_s=9.0)
            except QueueFullError:
                return False
            return True

        assert 0 < sum(map(takes, range(40))) < 10
        small = [batcher.submit([3] * 5, client=f"small {at}", deadline_s=9.0) for at in range(4)]
        model.gate.set()
        assert all(len(one.result(PATIENCE_S)["tens"]) == 5 for one in small)
