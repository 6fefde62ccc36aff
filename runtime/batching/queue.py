# SPDX-License-Identifier: Apache-2.0
"""The bounded queue between callers and the threads that run batches."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from .errors import ClosedError, QueueFullError
from .policy import Decision, Policy, Waiting, latest_start_s

LONGEST_WAIT_S = 3600.0
"""Then a thread looks again: Python cannot wait for any number of seconds that a caller may name."""
SHORTEST_WAIT_S = 1e-3
"""A policy that runs nothing, and wants to be asked again at once, is asked so much later."""


class HasWaiting(Protocol):
    """What can be queued: hashable, and equal to nothing else."""

    @property
    def waiting(self) -> Waiting:
        """The request as a policy sees it."""


EntryT = TypeVar("EntryT", bound=HasWaiting)


class RequestQueue(Generic[EntryT]):
    """Requests in the order of arrival, cut into runs by a policy.

    One thread at a time asks the policy, without holding up callers; the others wait for their turn. Another one takes
    out what can no longer be answered in time.
    """

    def __init__(self, policy: Policy, *, max_requests: int, max_tokens: int | None) -> None:
        self._policy = policy
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._planning = threading.Lock()
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._sooner = threading.Condition(lock)  # something is due before _due_s
        self._due_s = math.inf
        self._version = 0  # of the entries and of _closed
        self._entries: dict[EntryT, float] = {}  # in the order of arrival -> when it has to start at the latest
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
        latest_s = latest_start_s(entry.waiting, self._policy.costs)
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
            self._entries[entry] = latest_s
            self._tokens += length
            if latest_s < self._due_s:
                self._due_s = latest_s
                self._sooner.notify_all()
            self._notify()

    def discard(self, entry: EntryT) -> bool:
        """Takes a request out; False when it is not in the queue."""
        with self._changed:
            return bool(self._remove([entry]))

    def take(self) -> list[EntryT] | None:
        """Waits for the next run; None when the queue is closed and empty."""
        with self._planning:
            while True:
                with self._changed:
                    if self._closed and not self._entries:
                        return None
                    seen, entries = self._version, list(self._entries.items())
                now_s = time.monotonic()
                in_time = [entry for entry, latest_s in entries if latest_s > now_s]
                decision = Decision(())
                if in_time:
                    decision = self._policy.decide([entry.waiting for entry in in_time], now_s)
                run = [in_time[at] for at in decision.run]
                with self._changed:
                    if taken := self._remove(run):
                        return taken
                    if self._version == seen:
                        self._changed.wait(_wait_s(decision.wake_s))

    def take_late(self) -> list[EntryT] | None:
        """Waits for requests that can no longer be answered in time; None when the queue is closed and has no more."""
        with self._changed:
            while True:
                now_s = time.monotonic()
                if late := [entry for entry, latest_s in self._entries.items() if latest_s <= now_s]:
                    return self._remove(late)
                self._due_s = min(self._entries.values(), default=math.inf)
                if self._closed and self._due_s == math.inf:
                    return None
                self._sooner.wait(_wait_s(self._due_s))

    def close(self) -> None:
        """Takes no more requests; those that wait are still handed out."""
        with self._changed:
            self._closed = True
            self._sooner.notify_all()
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
            if self._closed:
                self._sooner.notify_all()  # perhaps that was the last one with a deadline
            self._notify()
        return removed

    def _notify(self) -> None:
        self._version += 1
        self._changed.notify_all()


def _wait_s(until_s: float) -> float | None:
    """The time until then, as Condition.wait takes it; None where nothing but a change is waited for."""
    if until_s == math.inf:
        return None
    wait_s = until_s - time.monotonic()
    return min(wait_s, LONGEST_WAIT_S) if wait_s > SHORTEST_WAIT_S else SHORTEST_WAIT_S
