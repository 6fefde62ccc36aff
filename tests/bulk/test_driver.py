# SPDX-License-Identifier: Apache-2.0
"""The driver with scripted workers: lost shards are dealt again, and a shard that ends every worker is named."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from padfree.bulk import BulkError, Progress
from padfree.bulk.driver import MOST_LOSSES, deal
from padfree.bulk.manifest import InputFile, Manifest, Model, Options, Piece
from padfree.bulk.parts import part_of
from padfree.bulk.report import report_of
from padfree.bulk.workers.base import BatchProgress, Event, Loss, Refusal, ShardFinish
from padfree.bulk.workers.worker import AHEAD, FinishedShard, WorkerTotals

ROWS = 10


def manifest(shards: int) -> Manifest:
    file = InputFile("/in.txt", "/in.txt", "text", 1, 0, "", "0", shards * ROWS)
    options = Options("embed", "out", ("text",), None, "", 8, "float32", 9, ROWS, None, None)
    pieces = tuple((Piece(0, at, 1, at * ROWS, ROWS),) for at in range(shards))
    return Manifest(Model("m", "0", "0"), options, "row numbers", (file,), pieces)


class ScriptedWorkers:
    """Workers that do one shard at a time; `lose` says whether a worker ends at a shard, by the number of the try."""

    def __init__(
        self, job: Manifest, count: int, lose: Callable[[int, int], bool] = lambda _shard, _time: False
    ) -> None:
        self.job, self.lose = job, lose
        self.queues: list[deque[int]] = [deque() for _ in range(count)]
        self.done: list[int] = []
        self.given: list[int] = []
        self.most = self.restarts = 0
        self.starting: set[int] = set()
        self.closed: bool | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"w{at}" for at in range(len(self.queues)))

    def is_ready(self, worker: int) -> bool:
        return worker not in self.starting

    def give(self, worker: int, shard: int) -> None:
        assert self.is_ready(worker)
        self.queues[worker].append(shard)
        self.given.append(shard)
        self.most = max(self.most, len(self.queues[worker]))

    def wait(self, _timeout_s: float) -> list[Event]:
        events: list[Event] = []
        for worker, queue in enumerate(self.queues):
            if not queue:
                continue
            shard = queue.popleft()
            if self.lose(shard, self.given.count(shard)):
                queue.clear()
                events.append(Loss(worker, "ended with code -9"))
                continue
            self.done.append(shard)
            part = part_of(self.job, self.job.digest, shard, 100, 0, ())
            events.append(
                ShardFinish(worker, FinishedShard(part, WorkerTotals(float(len(self.done)), 2.0 * len(self.done))))
            )
        return events

    def restart(self, worker: int) -> None:
        assert not self.queues[worker]
        self.restarts += 1

    def close(self, *, kill: bool) -> None:
        self.closed = kill


def test_every_shard_is_dealt_once_and_shared_out() -> None:
    job, seen = manifest(20), list[Progress]()
    workers = ScriptedWorkers(job, 3)
    there = {4: part_of(job, job.digest, 4, 50, 0, ())}
    outcome = deal(job, there, workers, seen.append)
    assert sorted(workers.done) == [at for at in range(20) if at != 4]
    assert (workers.most, workers.closed) == (AHEAD, False)
    assert (seen[-1].rows, seen[-1].all_rows, seen[-1].rows_now, seen[-1].tokens_now) == (200, 200, 190, 1900)
    assert (len(seen[-1].by_worker), sum(seen[-1].by_worker)) == (3, 1900)
    assert seen[-1].left_s == 0
    assert [progress.rows for progress in seen] == sorted(progress.rows for progress in seen)
    report = report_of(job, outcome, frozenset(there), workers.names)
    assert (report.texts, report.tokens, report.shards_found, report.texts_now) == (200, 1950, 1, 190)
    assert [worker.idle for worker in report.workers] == [0.5] * 3
    assert max(worker.tokens for worker in report.workers) <= 700


def test_batches_count_as_they_run_and_no_longer_where_their_worker_is_lost() -> None:
    job, seen = manifest(2), list[Progress]()
    workers = ScriptedWorkers(job, 1)
    part = part_of(job, job.digest, 0, 100, 0, ())
    turns: list[list[Event]] = [
        [BatchProgress(0, 0, 3, 30), BatchProgress(0, 1, 1, 10)],
        [BatchProgress(0, 0, 7, 70)],
        [ShardFinish(0, FinishedShard(part, WorkerTotals(1.0, 1.0)))],
        [Loss(0, "ended with code -9")],
    ]
    played = workers.wait

    def wait(timeout_s: float) -> list[Event]:
        if len(turns) == 1:
            workers.queues[0].clear()
        return turns.pop(0) if turns else played(timeout_s)

    workers.wait = wait  # type: ignore[method-assign]
    deal(job, {}, workers, seen.append)
    assert [(each.rows, each.tokens_now) for each in seen] == [(4, 40), (11, 110), (11, 110), (10, 100), (20, 200)]
    assert [each.by_worker for each in seen] == [(40,), (110,), (110,), (100,), (200,)]
    assert seen[0].left_s is not None


def test_the_last_shards_are_shared_out() -> None:
    """Of 7 shards, 3 workers get 3, 2 and 2: none gets more than its share, for which the others would wait."""
    job = manifest(7)
    outcome = deal(job, {}, ScriptedWorkers(job, 3), lambda _: None)
    assert sorted(outcome.tokens.values()) == [200, 200, 300]
    few = manifest(2)
    workers = ScriptedWorkers(few, 2)
    deal(few, {}, workers, lambda _: None)
    assert workers.most == 1


def test_a_worker_that_never_starts_gets_nothing_and_holds_nothing_up() -> None:
    job = manifest(9)
    workers = ScriptedWorkers(job, 3)
    workers.starting = {1}
    outcome = deal(job, {}, workers, lambda _: None)
    assert sorted(workers.done) == list(range(9))
    assert set(outcome.tokens) == {0, 2}


def test_what_lost_workers_had_is_dealt_again() -> None:
    job = manifest(24)
    workers = ScriptedWorkers(job, 2, lambda shard, time: shard in (0, 9, 17) and time == 1)
    outcome = deal(job, {}, workers, lambda _: None)
    assert sorted(workers.done) == list(range(24))
    assert (workers.restarts, outcome.losses) == (3, ["w0 ended with code -9", *outcome.losses[1:]])
    report = report_of(job, outcome, frozenset(), workers.names)
    assert report.tokens == 2400
    assert len(report.losses) == 3


def test_a_shard_that_ends_every_worker_is_named() -> None:
    job = manifest(40)
    workers = ScriptedWorkers(job, 2, lambda shard, _time: shard == 6)
    with pytest.raises(BulkError, match=rf"shard 6 \(/in.txt from row 60 on\): {MOST_LOSSES} workers ended"):
        deal(job, {}, workers, lambda _: None)
    assert workers.given.count(6) == MOST_LOSSES
    assert workers.closed is True
    assert len(set(workers.done)) == len(workers.done)


def test_what_a_worker_refuses_and_a_lost_lock_end_the_work() -> None:
    job = manifest(4)
    workers = ScriptedWorkers(job, 1)
    workers.wait = lambda _timeout_s: [Refusal(0, "the disk is full")]  # type: ignore[method-assign]
    with pytest.raises(BulkError, match="w0: the disk is full"):
        deal(job, {}, workers, lambda _: None)
    assert workers.closed is True

    def take() -> None:
        raise BulkError("another driver has taken the folder over")

    workers = ScriptedWorkers(job, 1)
    with pytest.raises(BulkError, match="taken the folder over"):
        deal(job, {}, workers, lambda _: None, take)
    assert (workers.given, workers.closed) == ([], True)
