# SPDX-License-Identifier: Apache-2.0
"""The processes of a server's models, and waiting for a condition."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def processes_of(model: str) -> dict[str, list[str]]:
    """Process id -> command line (program, model.py, shared memory, ...) of the Python backend for a model."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has ended
            command = file.read_text(errors="replace").split("\0")
            if len(command) > 2 and command[1].endswith(f"/{model}/1/model.py"):
                found[file.parent.name] = command
    return found


def wait_until(happens: Callable[[], bool], what: str, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not happens():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.02)
