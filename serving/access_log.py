# SPDX-License-Identifier: Apache-2.0
"""The access log: a line of JSON per request, written by a thread, so that no request waits for a disk or a pipe."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from padfree.runtime import SessionError

STDOUT = "-"
FLUSH_S = 0.2
"""Seconds that lines wait for others, to be written together."""
MOST_LINES = 1 << 14
"""Most lines that wait to be written; more are left out, and counted."""
END_S = 2.0
"""Seconds that the end of a process waits at most for its last lines."""
WRITE_BYTES = 1 << 12
"""Bytes of one write, in whole lines: a pipe takes so many in one piece (PIPE_BUF), whatever other processes write."""


def check(path: str | None) -> None:
    """Makes the file where there is none.

    Raises:
        SessionError: it cannot be written.
    """
    if path is None or path == STDOUT:
        return
    try:
        os.close(_open(path))
    except OSError as error:
        raise SessionError(
            f"--access-log {path}: cannot be written ({error.strerror}); name a file in a folder that exists, or - for "
            "stdout"
        ) from error


class AccessLog:
    """Appends lines to a file, or to stdout; all processes of a server write to the same one.

    A file that was renamed or removed meanwhile, as by logrotate, is made again.

    Args:
        path: the file, or "-".
        say: is told about lines that could not be written.
    """

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._lines: deque[bytes] = deque()
        self._lost_lines = 0
        self._file = -1
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="padfree-access-log", daemon=True)
        self._thread.start()

    def add(self, line: bytes) -> None:
        """Writes a line soon."""
        if len(self._lines) < MOST_LINES:
            self._lines.append(line + b"\n")
        else:
            self._lost_lines += 1

    def tell_lost(self) -> None:
        """Says how many lines are missing; called now and then, in the event loop."""
        lost_lines, self._lost_lines = self._lost_lines, 0
        if lost_lines:
            self._say(f"{lost_lines} lines of the access log could not be written")

    def close(self) -> None:
        """Writes what waits; does not wait for a reader that has stopped."""
        self._ending.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._ending.wait(FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        while self._lines:
            part = [self._lines.popleft()]
            size = len(part[0])
            while self._lines and size + len(self._lines[0]) <= WRITE_BYTES:
                part.append(self._lines.popleft())
                size += len(part[-1])
            try:
                _write_all(self._descriptor(), b"".join(part))
            except OSError:  # a full disk, or nobody at the other end: requests are answered all the same
                self._lost_lines += len(part)

    def _descriptor(self) -> int:
        if self._path == STDOUT:
            return 1
        if self._file >= 0 and not _is_same(self._file, self._path):
            os.close(self._file)
            self._file = -1
        if self._file < 0:
            self._file = _open(self._path)
        return self._file


def _open(path: str) -> int:
    # A named pipe that nobody reads is an error and not a wait.
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)


def _is_same(file: int, path: str) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(file), Path(path).stat())
    return False


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
