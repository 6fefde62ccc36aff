# SPDX-License-Identifier: Apache-2.0
"""The phases of a rewrite and a build: which one has begun, how far it is, and how many seconds it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

IMPORTS = "imports"
EXPORTING = "export"
REWRITING = "rewrite"
VERIFYING = "verify"
HALVING = "half precision"
WRITING = "writing"


class Watcher(Protocol):
    """Is told how far the work is."""

    def begin(self, phase: str) -> None:
        """A phase begins."""

    def report(self, done: int, of: int) -> None:
        """So many steps of the phase that began last are done."""


class Phases:
    """Seconds of the phases of one piece of work, in the order in which they began; `watcher` hears of each."""

    def __init__(self, watcher: Watcher | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._watcher = watcher

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Times what runs inside; times of a phase that comes again are added up."""
        if self._watcher is not None:
            self._watcher.begin(phase)
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(phase, time.monotonic() - start)

    def report(self, done: int, of: int) -> None:
        """Tells the watcher how many steps of the phase are done."""
        if self._watcher is not None:
            self._watcher.report(done, of)

    def add(self, phase: str, seconds: float) -> None:
        """Adds to a phase's seconds."""
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + seconds, 2)
