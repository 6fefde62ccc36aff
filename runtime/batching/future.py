# SPDX-License-Identifier: Apache-2.0
"""Futures that need a third of the time and of the objects that the standard library's need."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures._base import PENDING
from typing import Any

_RLock: Any = type(threading.RLock())


class Completion(_RLock):  # type: ignore[misc]
    """What a Future asks of its `threading.Condition`: a lock, which becomes a condition when a thread waits for it."""

    __slots__ = ("_condition",)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for `notify_all`; the caller holds the lock."""
        condition: threading.Condition | None = getattr(self, "_condition", None)
        if condition is None:
            condition = self._condition = threading.Condition(self)
        return bool(condition.wait(timeout))

    def notify_all(self) -> None:
        """Wakes who waits; the caller holds the lock. A future does so once, at its end."""
        condition: threading.Condition | None = getattr(self, "_condition", None)
        if condition is not None:
            condition.notify_all()
            del self._condition  # or the two would keep each other for the garbage collector


class LightFuture(Future[Any]):
    """A Future that makes no condition before somebody waits for it."""

    def __init__(self) -> None:
        # As the standard library's has it; a test compares the two.
        self._condition = Completion()
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks: list[Any] = []
