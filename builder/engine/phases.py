# SPDX-License-Identifier: Apache-2.0
"""Where a build's time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

STARTING = "TensorRT's start"
WAITING = "waiting for the model"  # which is prepared meanwhile
PARSING = "parser"
BUILDING = "TensorRT's build"
CHECKING = "look at the engine"
REFERENCE = "waiting for onnxruntime's answers"  # which it gives meanwhile
COMPARING = "check of the engine's answers"


class Phases:
    """Seconds of the parts of one build, in their order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measured(self, phase: str) -> Iterator[None]:
        """Times what is inside; of a phase that comes again, the last counts."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = round(time.monotonic() - start, 2)
