# SPDX-License-Identifier: Apache-2.0
"""Signals to a whole group (Ctrl-C, systemd's SIGTERM) while a child process is being started.

Such a child would be ended while it reads what it is to do, with a traceback, and multiprocessing would wait for ever
to write the rest of that.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def held_back(numbers: Collection[int]) -> Iterator[None]:
    """Holds signals back from processes that are started inside, until these call `let_through`."""
    resource_tracker.ensure_running()  # otherwise started inside, after which it lets SIGINT and SIGTERM through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_through(numbers: Collection[int]) -> None:
    """Lets a process that was started so have its signals, those that came meanwhile too."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
