# SPDX-License-Identifier: Apache-2.0
"""Where the time of a rewrite and a build goes: seconds by phase, in the order in which they began."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

IMPORTS = "imports"
EXPORTING = "export"
REWRITING = "rewrite"
VERIFYING = "verify"
HALVING = "half precision"
WRITING = "writing"


class Phases:
    """Seconds of the parts of one piece of work, in their order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measured(self, phase: str) -> Iterator[None]:
        """Times what is inside; of a phase that comes again, the sum."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(phase, time.monotonic() - start)

    def add(self, phase: str, seconds: float) -> None:
        """Adds to a phase's seconds."""
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + seconds, 2)

    def laps(self) -> Callable[[str], None]:
        """Gives a function that adds what has passed since its last call, or since now, to a phase."""
        last = time.monotonic()

        def lap(phase: str) -> None:
            nonlocal last
            now = time.monotonic()
            self.add(phase, now - last)
            last = now

        return lap
