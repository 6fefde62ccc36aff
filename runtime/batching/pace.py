# SPDX-License-Identifier: Apache-2.0
"""Tokens that the model computes per second while requests wait, and how many may wait for an answer in time."""

from __future__ import annotations

import math
import threading
import time

MEMORY_S = 5.0
"""What was measured this long ago weighs a third of what is measured now."""
LEAST_S = 0.25
"""The rate counts as unknown until runs of this many seconds were measured."""
TIME_FRACTION = 0.5
"""A request is accepted if it and all that waits need no more than this fraction of its time: other requests arrive
meanwhile and have shares of the model, too."""


class Pace:
    """Tokens per second, of all runs together; measured only while there is always more to run.

    Args:
        tokens_a_second: what was measured before, counted as a second's worth; None: nothing is known.
    """

    def __init__(self, tokens_a_second: float | None = None) -> None:
        self._before = tokens_a_second
        self._lock = threading.Lock()
        self._tokens = self._seconds = 0.0
        self._last_s = -math.inf
        self._was_busy = False

    def add_run(self, tokens: int, *, more: bool, now_s: float | None = None) -> None:
        """A run has ended; `more`: others wait, so that the model has no pause."""
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            elapsed_s = now_s - self._last_s
            decay = math.exp(-elapsed_s / MEMORY_S)
            self._tokens, self._seconds = decay * self._tokens, decay * self._seconds
            if self._was_busy:
                self._tokens, self._seconds = self._tokens + tokens, self._seconds + elapsed_s
            self._last_s, self._was_busy = now_s, more

    def tokens_a_second(self, now_s: float | None = None) -> float | None:
        """The rate; None where it is not known."""
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            decay = math.exp(-max(0.0, now_s - self._last_s) / MEMORY_S)
            tokens, seconds = decay * self._tokens, decay * self._seconds
        if self._before is not None:
            return (tokens + self._before) / (seconds + 1.0)
        return tokens / seconds if seconds >= LEAST_S else None


def room(tokens_a_second: float | None, seconds: float) -> float:
    """The most tokens that may wait, including the request's own, if it is to be answered in time."""
    if tokens_a_second is None or seconds == math.inf:
        return math.inf
    return TIME_FRACTION * seconds * tokens_a_second
