# SPDX-License-Identifier: Apache-2.0
"""The bounded queue between callers and the threads that run batches."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from .errors import ClosedError, QueueFullError
from .policy import Decision, Policy, Waiting, latest_start_s


class HasWaiting(Protocol):
    """What can be queued: hashable, and equal to nothing else."""

    @property
    def waiting(self) -> Waiting:
        """The request as a policy sees it."""


EntryT = TypeVar("EntryT", bound=HasWaiting)


@dataclass(frozen=True)
class Work(Generic[EntryT]):
    """What a thread takes from the queue: a run, and requests that can no longer be answered in time."""

    run: list[EntryT]
    too_late: list[EntryT]


class RequestQueue(Generic[EntryT]):
    """Requests in the order of arrival, cut into runs by a policy.

    One thread at a time asks the policy, without holding up callers; the others wait for their turn.
    """

    def __init__(self, policy: Policy, *, max_requests: int, max_tokens: int | None) -> None:
        self._policy = policy
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._planning = threading.Lock()
        self._changed = threading.Condition()
        self._version = 0  # of the entries and of _closed
        self._entries: dict[EntryT, None] = {}  # in the order of arrival
        self._tokens = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: EntryT) -> None:
        """Adds a request.

        Raises:
            QueueFullError: too many requests or tokens wait already.
            ClosedError: close has been called.
        """
        length = entry.waiting.length
        with self._changed:
            if self._closed:
                raise ClosedError("the batcher is closed and takes no more requests; open another one")
            if len(self._entries) >= self._max_requests:
                raise QueueFullError(
                    f"{len(self._entries)} requests wait, allowed: {self._max_requests}; try again later, send less, "
                    "or raise max_waiting"
                )
            # An empty queue takes a request of any length: it could never come in otherwise.
            if self._max_tokens is not None and self._entries and self._tokens + length > self._max_tokens:
                raise QueueFullError(
                    f"{self._tokens} tokens wait and the request has {length}, allowed: {self._max_tokens} in all; try "
                    "again later, send less, or raise max_waiting_tokens"
                )
            self._entries[entry] = None
            self._tokens += length
            self._notify()

    def discard(self, entry: EntryT) -> bool:
        """Takes a request out; False when it is not in the queue."""
        with self._changed:
            return bool(self._remove([entry]))

    def take(self) -> Work[EntryT] | None:
        """Waits for work; None when the queue is closed and empty."""
        with self._planning:
            while True:
                with self._changed:
                    if self._closed and not self._entries:
                        return None
                    seen, entries = self._version, list(self._entries)
                now_s = time.monotonic()
                in_time: list[EntryT] = []
                late: list[EntryT] = []
                for entry in entries:
                    (late if latest_start_s(entry.waiting, self._policy.costs) < now_s else in_time).append(entry)
                decision = Decision(())
                if in_time:
                    decision = self._policy.decide([entry.waiting for entry in in_time], now_s)
                run = [in_time[at] for at in decision.run]
                with self._changed:
                    work = Work(self._remove(run), self._remove(late))
                    if work.run or work.too_late:
                        return work
                    if self._version == seen:
                        wait_s = decision.wake_s - time.monotonic()
                        self._changed.wait(None if math.isinf(wait_s) else max(0.0, wait_s))

    def close(self) -> None:
        """Takes no more requests; those that wait are still handed out."""
        with self._changed:
            self._closed = True
            self._notify()

    def drain(self) -> list[EntryT]:
        """Takes out everything that waits."""
        with self._changed:
            return self._remove(list(self._entries))

    def _remove(self, entries: Sequence[EntryT]) -> list[EntryT]:
        """Takes those out that are still there (others were cancelled meanwhile), and returns them."""
        removed = []
        for entry in entries:
            if entry in self._entries:
                del self._entries[entry]
                self._tokens -= entry.waiting.length
                removed.append(entry)
        if removed:
            self._notify()
        return removed

    def _notify(self) -> None:
        self._version += 1
        self._changed.notify_all()
