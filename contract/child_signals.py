# SPDX-License-Identifier: Apache-2.0
"""Signals to a whole group (Ctrl-C, systemd's SIGTERM) while a child process is being started.

Such a child would be ended with a traceback while it reads its task, and multiprocessing would wait for ever to write
the rest of the task.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def held_back(numbers: Collection[int]) -> Iterator[None]:
    """Holds signals back from processes that are started inside, until these call `let_through`."""
    resource_tracker.ensure_running()  # started inside, it would let SIGINT and SIGTERM through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_through(numbers: Collection[int]) -> None:
    """Lets signals through to a process that was started so, those that came meanwhile, too."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
