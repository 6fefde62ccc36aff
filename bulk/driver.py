# SPDX-License-Identifier: Apache-2.0
"""Deals missing shards to workers until there are none; it survives lost workers, and finished parts survive it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from .dealing import Waiting
from .errors import BulkError
from .locations import Location
from .lock import Check
from .manifest import Manifest
from .parts import BAD_FOLDER, PART, Part, part_name, read_part
from .workers.base import BatchProgress, Loss, Refusal, ShardFinish, Workers
from .workers.worker import AHEAD, FinishedShard, WorkerTotals

TURN_S = 0.5
"""The longest wait for an event, in seconds."""
MOST_LOSSES = 8
"""A shard that was under way in this many workers that ended by themselves counts as the cause."""
FOOTERS_AT_ONCE = 16


@dataclass(frozen=True)
class Progress:
    """Where the work stands.

    Attributes:
        rows: that are done, also by earlier drivers: those of finished shards, bad ones included, and those of shards
            under way that have run.
        all_rows: rows of all inputs.
        rows_now: rows that this driver has done.
        tokens_now: tokens of these rows.
        by_worker: these tokens by worker.
        seconds: since the first shard was dealt.
    """

    rows: int
    all_rows: int
    rows_now: int
    tokens_now: int
    by_worker: tuple[int, ...]
    seconds: float

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at the present rate; None before anything is done."""
        return (self.all_rows - self.rows) * self.seconds / self.rows_now if self.rows_now else None


@dataclass
class Outcome:
    """What a driver has seen.

    Attributes:
        parts: the parts by shard.
        earlier: how many of them were there before.
        seconds: from the start to the last finished shard.
        tokens: tokens of finished shards, by the worker's number.
        totals: by the worker's number, one entry for each time that it was started.
        losses: workers that ended by themselves, and why.
    """

    parts: dict[int, Part]
    earlier: int = 0
    seconds: float = 0.0
    tokens: Counter[int] = field(default_factory=Counter)
    totals: dict[int, list[WorkerTotals]] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)

    def totals_of(self, worker: int) -> WorkerTotals:
        """The sums over all starts of a worker."""
        return WorkerTotals(*map(sum, zip(WorkerTotals(), *self.totals.get(worker, ()), strict=True)))


OnProgress = Callable[[Progress], None]


def find_parts(output: Location, manifest: Manifest) -> dict[int, Part]:
    """The shards whose parts exist and are whole.

    Raises:
        BulkError: parts of another result lie there.
    """
    digest = manifest.digest
    names = {part_name(shard): shard for shard in range(len(manifest.shards))}
    names_present = [info.base_name for info in output.entries()]
    unknown_name = next((name for name in names_present if name.startswith(PART) and name not in names), None)
    if unknown_name is not None:
        raise BulkError(f"{output.child(unknown_name).shown_path}: is no part of this result; move it away")
    shards = [names[name] for name in names_present if name in names]
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        parts = pool.map(partial(read_part, output, digest=digest), shards)
        return {shard: part for shard, part in zip(shards, parts, strict=True) if part is not None}


def remove_leftovers(output: Location) -> None:
    """Removes what killed workers were writing."""
    output.remove_partial((PART, "_"))
    output.child(BAD_FOLDER).remove_partial((PART,))


def deal(
    manifest: Manifest,
    parts: Mapping[int, Part],
    workers: Workers,
    on_progress: OnProgress,
    check: Check = lambda: None,
) -> Outcome:
    """Has workers do every shard that has no part yet.

    Args:
        manifest: the shards.
        parts: those that are done.
        workers: they do the others.
        on_progress: is called with the state of the work, every TURN_S or so.
        check: raises when another driver has taken the folder over.

    Raises:
        BulkError: a worker met something that trying again would not change, or workers keep ending by themselves.
    """
    dealer = _Dealer(manifest, parts, workers)
    has_failed = True
    try:
        while not dealer.is_done():
            check()
            dealer.fill()
            for event in workers.wait(TURN_S):
                if isinstance(event, ShardFinish):
                    dealer.finish(event.worker, event.done)
                elif isinstance(event, BatchProgress):
                    dealer.add_progress(event)
                elif isinstance(event, Loss):
                    dealer.lose(event)
                else:
                    assert isinstance(event, Refusal)
                    raise BulkError(f"{workers.names[event.worker]}: {event.message}")
            on_progress(dealer.progress())
        has_failed = False
    finally:
        workers.close(kill=has_failed)
    return dealer.outcome


class _Dealer:
    """Which worker has which shards, and what has become of them."""

    def __init__(self, manifest: Manifest, parts: Mapping[int, Part], workers: Workers) -> None:
        self._manifest, self._workers = manifest, workers
        self._waiting = Waiting(manifest, (shard for shard in range(len(manifest.shards)) if shard not in parts))
        self._under_way: dict[int, list[int]] = {worker: [] for worker in range(len(workers.names))}
        self._rows_under_way, self._tokens_under_way = ([Counter[int]() for _ in workers.names] for _ in range(2))
        self._losses: Counter[int] = Counter()
        self._done_rows = sum(manifest.shard_rows(shard) for shard in parts)
        self._before = self._done_rows
        self._start = time.perf_counter()
        self.outcome = Outcome(dict(parts), len(parts))

    def is_done(self) -> bool:
        return len(self.outcome.parts) == len(self._manifest.shards)

    def fill(self) -> None:
        """Gives every worker as much as it takes, and of what is left at the end no more than its share."""
        for _ in range(AHEAD):
            ready = {worker: shards for worker, shards in self._under_way.items() if self._workers.is_ready(worker)}
            shard_count = len(self._waiting) + sum(map(len, ready.values()))
            most = min(AHEAD, -(-shard_count // max(1, len(ready))))
            for worker, shards in ready.items():
                if self._waiting and len(shards) < most:
                    shard = self._waiting.take(worker)
                    shards.append(shard)
                    self._workers.give(worker, shard)

    def add_progress(self, event: BatchProgress) -> None:
        """Batches that are not on the disk yet, for the progress that is shown."""
        self._rows_under_way[event.worker][event.shard] += event.rows
        self._tokens_under_way[event.worker][event.shard] += event.tokens

    def finish(self, worker: int, done: FinishedShard) -> None:
        shard, outcome = done.part.shard, self.outcome
        for counts in (self._rows_under_way, self._tokens_under_way):
            counts[worker].pop(shard, None)
        if shard in self._under_way[worker]:
            self._under_way[worker].remove(shard)
        outcome.parts[shard] = done.part
        outcome.tokens[worker] += done.part.tokens
        totals = outcome.totals.setdefault(worker, [WorkerTotals()])
        totals[-1] = max(totals[-1], done.totals)  # two writers may end in another order
        self._done_rows += self._manifest.shard_rows(shard)
        outcome.seconds = time.perf_counter() - self._start

    def lose(self, event: Loss) -> None:
        """Deals again what the worker had, and starts it anew.

        Raises:
            BulkError: a shard has ended too many workers.
        """
        shards = self._under_way[event.worker]
        self._losses.update(shards)
        self._waiting.put_back(shards)
        shards.clear()
        for counts in (self._rows_under_way, self._tokens_under_way):
            counts[event.worker].clear()
        name = self._workers.names[event.worker]
        self.outcome.losses.append(f"{name} {event.why}")
        shard, times = max(self._losses.items(), key=lambda item: item[1], default=(0, 0))
        if times >= MOST_LOSSES:
            raise BulkError(
                f"{self._where(shard)}: {times} workers ended with it under way, the last one, {name}, {event.why}; "
                "look for a lack of memory or a failing GPU (dmesg), or leave the file out"
            )
        self.outcome.totals.setdefault(event.worker, []).append(WorkerTotals())
        self._workers.restart(event.worker)

    def progress(self) -> Progress:
        rows = self._done_rows + sum(map(Counter.total, self._rows_under_way))
        tokens = tuple(
            self.outcome.tokens[worker] + counts.total() for worker, counts in enumerate(self._tokens_under_way)
        )
        seconds = time.perf_counter() - self._start
        return Progress(rows, self._manifest.rows, rows - self._before, sum(tokens), tokens, seconds)

    def _where(self, shard: int) -> str:
        piece = self._manifest.shards[shard][0]
        return f"shard {shard} ({self._manifest.inputs[piece.file].location().shown_path} from row {piece.first} on)"
