# SPDX-License-Identifier: Apache-2.0
"""What the batches of a worker, which run in several threads, share: their time, and their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Clock:
    """Measures how long at least one of several threads was inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._busy_s = 0.0
        self._first = self._since = self._last = 0.0

    def __enter__(self) -> None:
        with self._lock:
            now = time.perf_counter()
            self._first = self._first or now
            if not self._inside:
                self._since = now
            self._inside += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            self._last = time.perf_counter()
            if not self._inside:
                self._busy_s += self._last - self._since

    def seconds(self) -> tuple[float, float]:
        """(seconds with a thread inside, seconds from the first entry to the last exit)."""
        with self._lock:
            busy_s = self._busy_s + (self._last - self._since if self._inside and self._last > self._since else 0.0)
            return busy_s, self._last - self._first


class Countdown:
    """Calls something when a number of pieces of work have ended; the first that fails fails the future instead."""

    def __init__(self, count: int, then: Callable[[], object], future: Future[Any]) -> None:
        self._lock = threading.Lock()
        self._count_left, self._then, self._future = count, then, future
        self._has_failed = False

    def count(self, work: Any, *arguments: Any) -> None:
        """Does one piece."""
        error: BaseException | None = None
        if not self._has_failed:
            try:
                work(*arguments)
            except BaseException as cause:
                error = cause
        with self._lock:
            self._count_left -= 1
            last, first_failure = not self._count_left, error is not None and not self._has_failed
            self._has_failed |= error is not None
            has_failed = self._has_failed
        if first_failure:
            self._future.set_exception(error)
        elif last and not has_failed:
            self._then()
