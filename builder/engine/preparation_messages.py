# SPDX-License-Identifier: Apache-2.0
"""Messages of the process that prepares a model, while it works: lines of JSON in a pipe, one message each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import IO, Any

from padfree.contract.phases import Watcher

_BEGIN, _REPORT, _SAY, _END = "begin", "report", "say", "end"


class Teller:
    """Writes messages into the pipe with the file descriptor `pipe`, whose reader may have gone."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def begin(self, phase: str) -> None:
        """A phase begins."""
        self._tell(_BEGIN, phase)

    def report(self, done: int, of: int) -> None:
        """So many steps of the phase are done."""
        self._tell(_REPORT, done, of)

    def say(self, line: str) -> None:
        """Something that the user should know."""
        self._tell(_SAY, line)

    def end(self, code: int) -> None:
        """The model is prepared, or failed, as the exit code will say; the process may go on working."""
        self._tell(_END, code)

    def _tell(self, *message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, json.dumps(message).encode() + b"\n")


def to_stderr(line: str) -> None:
    """Tells the user something."""
    sys.stderr.write(f"{line}\n")


def relay(pipe: IO[bytes], watcher: Watcher | None, say: Callable[[str], object]) -> int | None:
    """Passes messages on until the model is prepared: the exit code, or None where the process has ended."""
    for line in pipe:
        kind, *values = json.loads(line)
        if kind == _END:
            return int(values[0])
        if kind == _SAY:
            say(values[0])
        elif watcher is not None and kind == _BEGIN:
            watcher.begin(values[0])
        elif watcher is not None and kind == _REPORT:
            watcher.report(values[0], values[1])
    return None
