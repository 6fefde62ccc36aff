# SPDX-License-Identifier: Apache-2.0
"""The bounded queue between callers and the threads that run batches."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from .errors import ClosedError, QueueFullError
from .line import IndexedLine
from .pace import Pace, room
from .policy import TURN, LinePolicy, Policy, latest_start_s
from .turns import Turns
from .waiting import Waiting

LATEST = "latest"
"""The order of the moments at which requests have to start, at the latest."""

LARGE = 0.75
"""Clients may fill this fraction of a queue with requests beyond half of their share; the rest is for others."""
LONGEST_WAIT_S = 3600.0
"""After this time a thread looks again: Python cannot wait for arbitrarily many seconds."""
SHORTEST_WAIT_S = 1e-3
"""A policy that runs nothing and wants to be asked again at once is asked after this time."""


class HasWaiting(Hashable, Protocol):
    """What can be queued: equal to nothing else."""

    @property
    def waiting(self) -> Waiting:
        """The request as a policy sees it."""


RequestT = TypeVar("RequestT", bound=HasWaiting)


class RequestQueue(Generic[RequestT]):
    """Requests in the order of arrival, cut into runs by a policy.

    One thread at a time asks the policy, without holding up callers; the others wait for their turn. Another one takes
    out what can no longer be answered in time. What a run costs follows from the run, not from how many wait, where the
    policy is a LinePolicy.
    """

    def __init__(self, policy: Policy, *, max_requests: int, max_tokens: int | None, pace: Pace | None = None) -> None:
        self._policy = policy
        self._pace = pace or Pace()
        # A policy derived from one of these may have a `decide` of its own, which is then the one to ask.
        by_line = getattr(type(policy), "decide", None) is LinePolicy.decide
        self._line_policy = policy if by_line and isinstance(policy, LinePolicy) else None
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._planning = threading.Lock()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sooner = threading.Condition(self._lock)  # something is due before _due_s
        self._due_s = math.inf
        self._version = 0  # of the entries and of _closed
        self._sleeps = False  # the thread that asks the policy waits for another version
        orders = {} if self._line_policy is None else dict(self._line_policy.orders)
        self._line = IndexedLine[RequestT]({**orders, LATEST: partial(latest_start_s, costs=policy.costs)})
        self._turns = Turns() if TURN in orders else None
        self._late: dict[RequestT, Waiting] = {}  # which nobody runs any more, until take_late has them
        self._late_tokens = 0
        self._closed = False

    def __len__(self) -> int:
        return self._line.requests + len(self._late)

    @property
    def tokens(self) -> int:
        """Tokens that wait."""
        return self._line.tokens + self._late_tokens

    def put(self, *entries: RequestT) -> None:
        """Adds a request, or all parts of one that came together: all of them, or none.

        Raises:
            QueueFullError: too many requests or tokens wait already, or so many that the answer would be late.
            ClosedError: close has been called.
        """
        keys = [dict(self._line.keys_of(entry.waiting)) for entry in entries]
        with self._lock:
            if self._closed:
                raise ClosedError("the batcher is closed and takes no more requests; open another one")
            self._check_room([entry.waiting for entry in entries])
            turn = None if self._turns is None else self._turns.join([entry.waiting for entry in entries])
            for entry, of_entry in zip(entries, keys, strict=True):
                self._add(entry, of_entry, turn)
            self._notify()

    def _add(self, entry: RequestT, keys: dict[str, float], turn: float | None) -> None:
        waiting = entry.waiting
        if turn is not None:
            keys[TURN] = turn
            waiting = waiting._replace(turn=turn)
        self._line.add(entry, waiting, keys)
        if keys[LATEST] < self._due_s:
            self._due_s = keys[LATEST]
            self._sooner.notify_all()

    def _check_room(self, parts: Sequence[Waiting]) -> None:
        """Raises QueueFullError where there is too little for all of them."""
        requests, tokens = len(self), self.tokens
        # An empty queue takes a request of any length, and of any number of parts: it could never come in otherwise.
        if not requests:
            return
        if requests + len(parts) > self._max_requests:
            raise QueueFullError(
                f"{requests} requests wait, allowed: {self._max_requests}; try again later, send less, or raise "
                "max_waiting"
            )
        more, rate = sum(part.length for part in parts), self._pace.tokens_a_second()
        first = parts[0]
        most = self._share(math.inf if self._max_tokens is None else self._max_tokens, first, more)
        if tokens + more > most:
            raise QueueFullError(
                f"{tokens} tokens wait and the request has {more}, allowed: {most:.0f} in all; try again later, send "
                "less, or raise max_waiting_tokens",
                (tokens + more - most) / rate if rate else None,
            )
        most = self._share(room(rate, first.deadline_s - first.arrived_s) / LARGE, first, more)
        if rate is not None and tokens + more > most:
            raise QueueFullError(
                f"{tokens} tokens wait and the request has {more}, which take {(tokens + more) / rate:.1f} s, allowed: "
                f"{most / rate:.1f} s, as others arrive meanwhile; try again later, send less, or allow more time",
                (tokens + more - most) / rate,
            )

    def _share(self, most: float, request: Waiting, tokens: int) -> float:
        """What may wait: everything for clients that ask for little; those that ask for much leave room for them."""
        if self._turns is None or self._turns.is_modest(request, tokens, most):
            return most
        return LARGE * most

    def discard(self, entry: RequestT) -> bool:
        """Takes a request out; False when it is not in the queue."""
        with self._lock:
            return bool(self._remove([entry]))

    def take(self) -> list[RequestT] | None:
        """Waits for the next run; None when the queue is closed and empty."""
        with self._planning:
            while True:
                with self._lock:
                    if self._closed and not len(self):
                        return None
                    version, now_s = self._version, time.monotonic()
                    self._set_late_aside(now_s)
                    seen, wake_s = self._look(now_s)
                run, wake_s = self._pick(seen, wake_s, now_s)
                with self._lock:
                    if run_entries := self._remove(run, to_run=True):
                        return run_entries
                    if self._version == version:
                        self._sleeps = True
                        self._changed.wait(_wait_s(wake_s))
                        self._sleeps = False

    def take_late(self) -> list[RequestT] | None:
        """Waits for requests that can no longer be answered in time; None when the queue is closed and has no more."""
        with self._lock:
            while True:
                self._set_late_aside(time.monotonic())
                if self._late:
                    return self._remove(list(self._late))
                self._due_s = self._line.least(LATEST)
                if self._closed and self._due_s == math.inf:
                    return None
                self._sooner.wait(_wait_s(self._due_s))

    def close(self) -> None:
        """Takes no more requests; those that wait are still handed out."""
        with self._lock:
            self._closed = True
            self._sooner.notify_all()
            self._notify()

    def drain(self) -> list[RequestT]:
        """Takes out everything that waits."""
        with self._lock:
            return self._remove([*self._late, *self._line])

    def _look(self, now_s: float) -> tuple[list[tuple[RequestT, Waiting]], float]:
        """The requests among which the policy chooses; and, if there are none, when to ask it again."""
        if not self._line.requests:
            return [], math.inf
        if self._line_policy is None:
            return list(self._line.in_order(None)), math.inf
        return self._line_policy.look(self._line, now_s)

    def _pick(self, seen: list[tuple[RequestT, Waiting]], wake_s: float, now_s: float) -> tuple[list[RequestT], float]:
        """The next run; without one, when to ask the policy again."""
        if not seen:
            return [], wake_s
        requests = [waiting for _, waiting in seen]
        if self._line_policy is not None:
            return [seen[at][0] for at in self._line_policy.pick(requests, now_s)], wake_s
        decision = self._policy.decide(requests, now_s)
        return [seen[at][0] for at in decision.run], decision.wake_s

    def _set_late_aside(self, now_s: float) -> None:
        """Keeps from policies what can no longer be answered in time, and wakes who takes it."""
        while self._line.least(LATEST) <= now_s:
            entry, waiting = next(self._line.in_order(LATEST))
            self._line.remove(entry)
            if self._turns is not None:
                self._turns.discard(waiting.client, waiting.length)
            self._late[entry] = waiting
            self._late_tokens += waiting.length
            self._sooner.notify_all()

    def _remove(self, entries: Iterable[RequestT], *, to_run: bool = False) -> list[RequestT]:
        """Takes those out that are still there (others were cancelled meanwhile), and returns them."""
        removed_requests = []
        for entry in entries:
            if self._line.remove(entry):
                removed_requests.append(entry)
                if self._turns is not None:
                    leave = self._turns.run if to_run else self._turns.discard
                    leave(entry.waiting.client, entry.waiting.length)
            elif entry in self._late:
                self._late_tokens -= self._late.pop(entry).length
                removed_requests.append(entry)
        if removed_requests:
            if self._closed:
                self._sooner.notify_all()  # perhaps that was the last one with a deadline
            self._notify()
        return removed_requests

    def _notify(self) -> None:
        self._version += 1
        if self._sleeps:  # nobody else does: one thread at a time asks the policy
            self._changed.notify()


def _wait_s(until_s: float) -> float | None:
    """The time until then, as Condition.wait takes it; None where nothing but a change is waited for."""
    if until_s == math.inf:
        return None
    wait_s = until_s - time.monotonic()
    return min(wait_s, LONGEST_WAIT_S) if wait_s > SHORTEST_WAIT_S else SHORTEST_WAIT_S
