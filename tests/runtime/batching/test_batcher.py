# SPDX-License-Identifier: Apache-2.0
"""Batcher over a model that tests hold up, slow down and break: who is answered, refused or cancelled, and when."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import (
    Batcher,
    BatchingError,
    Budget,
    CheapestCut,
    ClosedError,
    CostTable,
    DeadlineError,
    FirstCome,
    Policy,
    QueueFullError,
)
from padfree.runtime.batching.response_cache import ResponseCache

from .batcher_model import BREAKS, PATIENCE_S, Model, answer, first_come, held_up


def test_requests_that_wait_run_together(model: Model) -> None:
    with Batcher(model, first_come(max_tokens=5), runs=1) as batcher:
        first = held_up(model, batcher)
        futures = [batcher.submit(ids) for ids in ([2, 3], [4], [], [5, 6], [7, 8, 9, 10])]
        model.gate.set()
        assert [answer(future) for future in futures] == [[20, 30], [40], [], [50, 60], [70, 80, 90, 100]]
        assert answer(first) == [10]
    assert model.runs == [[[1]], [[2, 3], [4], [], [5, 6]], [[7, 8, 9, 10]]]
    stats = batcher.stats
    assert (stats.answered, stats.runs, stats.tokens, stats.waiting) == (6, 3, 10, 0)


def test_types_go_with_their_ids(packed_model: Callable[..., Path]) -> None:
    with Session(packed_model()) as session, Batcher(session, FirstCome(session.budget)) as batcher:
        one = batcher.submit({"input_ids": [5, 6], "token_type_ids": [0, 1]})
        two = batcher.submit(np.array([7]))
        assert one.result(PATIENCE_S)["hidden"].tolist() == [[5, 0], [6, 1]]
        assert two.result(PATIENCE_S)["hidden"].tolist() == [[7, 0]]
        assert two.result()["lengths"].tolist() == [1]


@pytest.mark.parametrize("ids", [[1, 100], [[1]], ["a"], list(range(17))])
def test_a_request_that_does_not_fit_the_model_is_refused_at_once(model: Model, ids: list[Any]) -> None:
    with Batcher(model, first_come()) as batcher, pytest.raises(SessionError, match=r"allowed|positions"):
        batcher.submit(ids)
    assert model.runs == []


def test_a_request_that_fails_fails_alone(model: Model) -> None:
    with Batcher(model, first_come(), runs=1) as batcher:
        held_up(model, batcher)
        futures = [batcher.submit([at]) for at in (60, 61, BREAKS, 62, 63)]
        model.gate.set()
        for at, future in enumerate(futures):
            if at == 2:
                with pytest.raises(RuntimeError, match="does not like it"):
                    future.result(PATIENCE_S)
            else:
                assert len(answer(future)) == 1
        assert answer(batcher.submit([5])) == [50]
    assert (batcher.stats.answered, batcher.stats.failed) == (6, 1)


def test_a_full_queue_refuses(model: Model) -> None:
    with Batcher(model, first_come(), runs=1, max_waiting=2) as batcher:
        held_up(model, batcher)
        waiting = [batcher.submit([2]), batcher.submit([3])]
        with pytest.raises(QueueFullError, match="2 requests wait, allowed: 2; try again later"):
            batcher.submit([4], caller="anybody")
        waiting[0].cancel()
        batcher.submit([4])
        model.gate.set()
    assert [row for run in model.runs for row in run] == [[1], [3], [4]]
    assert (batcher.stats.refused, batcher.stats.cancelled) == (1, 1)


def test_tokens_fill_the_queue_too(model: Model) -> None:
    with Batcher(model, first_come(), runs=1, max_waiting_tokens=4) as batcher:
        held_up(model, batcher)
        long = batcher.submit([2] * 9)
        with pytest.raises(QueueFullError, match="9 tokens wait and the request has 1, allowed: 4 in all"):
            batcher.submit([3])
        model.gate.set()
        assert len(answer(long)) == 9


def test_a_cancelled_request_does_not_run(model: Model) -> None:
    with Batcher(model, first_come(), runs=1) as batcher:
        running = held_up(model, batcher)
        futures = [batcher.submit([at]) for at in (2, 3)]
        assert futures[0].cancel()
        assert not running.cancel(), "it runs already"
        model.gate.set()
        assert answer(futures[1]) == [30]
        with pytest.raises(CancelledError):
            futures[0].result(PATIENCE_S)
    assert model.runs == [[[1]], [[3]]]


def test_a_cancelled_task_takes_its_request_along(model: Model) -> None:
    async def main() -> None:
        async with Batcher(model, first_come(), runs=1) as batcher:
            held_up(model, batcher)
            kept, left = (asyncio.ensure_future(batcher.infer([at])) for at in (2, 3))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(left, 0.01)
            assert batcher.stats.waiting == 1
            model.gate.set()
            assert (await kept)["tens"].tolist() == [20]

    asyncio.run(main())
    assert model.runs == [[[1]], [[2]]]


def table(ms_a_token: float = 0.001) -> CostTable:
    lengths, batches = (1, 16), (1, 8)
    return CostTable("packed", lengths, batches, tuple(tuple(1 + L * B * ms_a_token for B in batches) for L in lengths))


@pytest.mark.parametrize("runs", [1, 3])
def test_answers_keep_each_caller_s_order(model: Model, runs: int) -> None:
    rng = random.Random(runs)
    model.delay_s = lambda: rng.random() * 2e-3
    done: dict[str, list[int]] = {"a": [], "b": []}
    with Batcher(model, CheapestCut(table(), Budget(max_sequences=3)), runs=runs, cache_bytes=1 << 14) as batcher:
        futures = []
        for at in range(120):
            caller = rng.choice("ab")
            ids = [rng.choice([5, 6, BREAKS])] * rng.randint(1, 16)
            future = batcher.submit(ids, caller=caller)
            future.add_done_callback(lambda _, caller=caller, at=at: done[caller].append(at))
            futures.append(future)
            if rng.random() < 0.2:
                rng.choice(futures).cancel()
        assert not wait(futures, PATIENCE_S).not_done
    assert sorted(done["a"] + done["b"]) == list(range(120))
    for order in done.values():
        # A cancelled request is done when it is cancelled.
        answered = [at for at in order if not futures[at].cancelled()]
        assert answered == sorted(answered)
    assert batcher.stats.cancelled == sum(future.cancelled() for future in futures)


def test_without_a_caller_nobody_waits_for_another(model: Model) -> None:
    model.gate.clear()
    with Batcher(model, first_come(max_sequences=1), runs=2) as batcher:
        slow = batcher.submit([1], caller="a")
        behind, other = batcher.submit([2], caller="a"), batcher.submit([3])
        assert answer(other) == [30]
        assert [[2]] in model.runs
        assert not behind.done()
        model.gate.set()
        assert [answer(slow), answer(behind)] == [[10], [20]]


def test_a_deadline_that_cannot_be_met_is_refused(model: Model) -> None:
    with Batcher(model, FirstCome(Budget(), costs=table(ms_a_token=100))) as batcher:
        with pytest.raises(DeadlineError, match=r"10 tokens cannot be answered within the 500\.0 ms that its"):
            batcher.submit([1] * 10, deadline_s=0.5)  # takes 1 s
        assert answer(batcher.submit([1], deadline_s=PATIENCE_S)) == [10]
    assert batcher.stats.refused == 1


def test_a_request_that_waited_past_its_deadline_is_dropped(model: Model) -> None:
    with Batcher(model, first_come(), runs=1) as batcher:
        held_up(model, batcher)
        late, other = batcher.submit([2], deadline_s=0.01), batcher.submit([3], deadline_s=PATIENCE_S)
        time.sleep(0.02)
        model.gate.set()
        with pytest.raises(DeadlineError, match=r"within the 10\.0 ms"):
            late.result(PATIENCE_S)
        assert answer(other) == [30]
    assert model.runs == [[[1]], [[3]]]
    assert (batcher.stats.too_late, batcher.stats.failed) == (1, 1)


def test_an_answer_is_asked_for_once(model: Model) -> None:
    with Batcher(model, first_come(), cache_bytes=1 << 16) as batcher:
        types = {"input_ids": [4, 5], "token_type_ids": [0, 1]}
        answers = [answer(batcher.submit(ids)) for ids in ([4, 5], [4, 5], types, [4], [4, 5])]
        assert answers == [[40, 50], [40, 50], [40, 50], [40], [40, 50]]
        value = batcher.submit([4, 5]).result()["tens"]
        with pytest.raises(ValueError, match="read-only"):
            value[0] = 1
    assert len(model.runs) == 3
    assert (batcher.stats.cache_hits, batcher.stats.answered) == (3, 6)


def test_the_cache_keeps_what_was_asked_for_last(model: Model) -> None:
    with Batcher(model, first_come(), cache_bytes=1200) as batcher:  # two entries of a little more than 512 bytes each
        for ids in ([1], [2], [1], [3], [1], [2]):
            answer(batcher.submit(ids))
        assert batcher.stats.cache_bytes <= 1200
    assert model.runs == [[[1]], [[2]], [[3]], [[2]]]


def test_threads_share_a_cache() -> None:
    cache = ResponseCache(4 * 600)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            key = bytes([rng.randrange(8)])
            actual = cache.get(key) or cache.put(key, {"value": np.frombuffer(key, dtype=np.uint8)})
            assert actual["value"].tobytes() == key

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    held = sum(cache.get(bytes([at])) is not None for at in range(8))
    assert held == 4
    assert cache.bytes_held == 4 * (512 + 2)


def test_close_answers_what_waits(model: Model) -> None:
    batcher = Batcher(model, FirstCome(Budget(), max_delay_s=0.01), runs=2)
    futures = [batcher.submit([at]) for at in range(5)]
    batcher.close()
    batcher.close()
    assert all(future.done() for future in futures)
    with pytest.raises(ClosedError, match="takes no more requests"):
        batcher.submit([1])


def test_close_without_draining_fails_what_waits(model: Model) -> None:
    batcher = Batcher(model, first_come(), runs=1)
    running = held_up(model, batcher)
    left = batcher.submit([2])
    closing = threading.Thread(target=batcher.close, kwargs={"drain": False})
    closing.start()
    with pytest.raises(ClosedError, match="before the request ran"):
        left.result(PATIENCE_S)
    model.gate.set()
    closing.join()
    assert answer(running) == [10]


def test_a_callback_may_close_its_batcher(model: Model) -> None:
    batcher = Batcher(model, first_come())
    closed = threading.Event()

    def close(_: Future[Any]) -> None:
        batcher.close()
        closed.set()

    batcher.submit([1]).add_done_callback(close)
    assert closed.wait(PATIENCE_S)


def test_a_batcher_that_nobody_holds_answers_and_ends(model: Model) -> None:
    before = threading.active_count()
    future = Batcher(model, first_come()).submit([1])
    gc.collect()
    assert answer(future) == [10]
    end = time.monotonic() + PATIENCE_S
    while threading.active_count() > before:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_policy_that_breaks_fails_who_waits_and_no_more(model: Model) -> None:
    class Broken(FirstCome):
        def decide(self, waiting: Any, now_s: float) -> Any:
            if len(waiting) == 2:
                raise ZeroDivisionError
            return super().decide(waiting, now_s)

    with Batcher(model, Broken(Budget()), runs=1) as batcher:
        held_up(model, batcher)
        futures = [batcher.submit([at]) for at in (2, 3)]
        model.gate.set()
        for future in futures:
            with pytest.raises(BatchingError, match="the batching policy failed: ZeroDivisionError"):
                future.result(PATIENCE_S)
        assert answer(batcher.submit([4])) == [40]


POLICIES = [
    FirstCome(Budget(max_tokens=40, max_sequences=8)),
    FirstCome(Budget(max_sequences=4), max_delay_s=1e-3, patience_s=0.1, costs=table()),
    CheapestCut(table(), Budget(max_tokens=40), max_delay_s=1e-3),
]


@pytest.mark.parametrize("policy", POLICIES, ids=["tokens", "delay", "cheapest"])
def test_threads_and_coroutines_each_get_their_own_answer(model: Model, policy: Policy) -> None:
    delays = random.Random(0)
    model.delay_s = lambda: delays.random() * 1e-3

    def check(ids: list[int], actual: Any) -> None:
        assert actual["tens"].tolist() == [10 * at for at in ids]

    def sequences(seed: int) -> Iterator[list[int]]:
        rng = random.Random(seed)
        return ([rng.randrange(60) for _ in range(rng.randint(0, 16))] for _ in range(40))

    def from_a_thread(seed: int) -> None:
        for ids in sequences(seed):
            check(ids, batcher.submit(ids, caller=seed).result(PATIENCE_S))

    async def ask(ids: list[int]) -> None:
        check(ids, await batcher.infer(ids, deadline_s=PATIENCE_S))

    async def from_coroutines() -> None:
        await asyncio.gather(*(ask(ids) for seed in (10, 11, 12) for ids in sequences(seed)))

    with Batcher(model, policy, runs=3) as batcher, ThreadPoolExecutor(6) as pool:
        threads = [pool.submit(from_a_thread, seed) for seed in range(6)]
        asyncio.run(from_coroutines())
        for thread in threads:
            thread.result(PATIENCE_S)
    assert batcher.stats.answered == 9 * 40
    assert sum(len(run) for run in model.runs) == 9 * 40


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("nan")])
def test_a_deadline_that_means_nothing_is_refused(model: Model, deadline_s: float) -> None:
    with (
        Batcher(model, first_come()) as batcher,
        pytest.raises(SessionError, match=r"deadline_s is .*, allowed: above 0"),
    ):
        batcher.submit([1], deadline_s=deadline_s)


@pytest.mark.parametrize("name", ["runs", "max_waiting", "max_waiting_tokens"])
def test_numbers_that_mean_nothing_are_refused(model: Model, name: str) -> None:
    with pytest.raises(SessionError, match=f"{name} is 0, allowed: 1 or more"):
        Batcher(model, first_come(), **{name: 0})  # type: ignore[arg-type]
