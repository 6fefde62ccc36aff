# SPDX-License-Identifier: Apache-2.0
"""Processes that do not outlive the process that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

from padfree.contract.child_signals import let_through

ORPHANED, INCOMPLETE, DRIVING = 3, 4, 5
"""Exit codes: whoever started the process is gone; a process that this one needs is; a worker would be a driver."""
UNHEARD = (signal.SIGINT,)
"""Ctrl-C reaches the whole group, and the driver says what comes next."""
WORKER = "padfree-worker-"
"""What the names of workers begin with."""


def end_if_worker() -> None:
    """Ends this process if it is a worker, which imports the program that started it and so calls it again."""
    if multiprocessing.current_process().name.startswith(WORKER):
        os._exit(DRIVING)


def die_with_parent() -> None:
    """Ends this process as soon as its parent has: nobody would wait for what it makes.

    What was being written stays aside under a name of its own, which the next driver removes.
    """
    for number in UNHEARD:
        signal.signal(number, signal.SIG_IGN)
    let_through(UNHEARD)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="padfree-parent", daemon=True).start()
