# SPDX-License-Identifier: Apache-2.0
"""The threads of a Batcher: they end with its queue, and before the interpreter does."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Callable

from .errors import BatchingError, ClosedError
from .serving import Server

AT_EXIT_S = 30.0
"""How long the end of a process waits for runs under way."""

_log = logging.getLogger(__name__)


class Threads:
    """Some threads that serve, and one that watches deadlines. It knows nothing of the Batcher, as Server.

    They are daemons, so that a batcher that nobody closed does not keep the process from ending. A daemon in the middle
    of a run aborts the process when the interpreter goes, so the end of the process waits for it.

    Args:
        server: what they do.
        runs: how many serve.
    """

    def __init__(self, server: Server, runs: int) -> None:
        self._server = server
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._exiting = False
        works = [
            *((f"padfree-batcher-{at}", server.serve) for at in range(runs)),
            ("padfree-deadlines", server.expire),
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(work,), name=name, daemon=True) for name, work in works
        ]
        self._alive = len(works)
        atexit.register(self._at_exit)
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            server.queue.close()
            atexit.unregister(self._at_exit)
            raise

    def check_process(self) -> None:
        """Raises ClosedError in a fork of the process, where there are no threads: nothing would ever be answered."""
        if os.getpid() != self._process:
            raise ClosedError(
                f"the batcher belongs to process {self._process}, and this one, {os.getpid()}, is a fork of it without "
                "its threads; open session and batcher after the fork, or start processes with the method 'spawn'"
            )

    def let_end(self) -> None:
        """Takes no more requests; threads end when they have answered what waits."""
        if os.getpid() == self._process:  # in a fork somebody may hold the lock for ever
            self._server.queue.close()

    def end(self, error: BatchingError | None = None, *, within_s: float = math.inf) -> None:
        """Waits for the threads, after failing what waits with `error`, if there is one, or answering it."""
        if os.getpid() != self._process:
            return
        self._server.queue.close()
        if error is not None:
            self._server.abandon(self._server.queue.drain(), error)
        until_s = time.monotonic() + within_s
        for thread in self._threads:
            if thread is not threading.current_thread():  # a callback of a future may close its batcher
                thread.join(None if within_s == math.inf else max(0.0, until_s - time.monotonic()))

    def _at_exit(self) -> None:
        self._exiting = True
        self.end(ClosedError("the process ended before the request ran; close the batcher first"), within_s=AT_EXIT_S)
        if self._alive and os.getpid() == self._process:
            _log.warning("the process ends in the middle of a run, which did not end within %.0f s", AT_EXIT_S)

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._alive -= 1
                last = not self._alive
            if last and not self._exiting:
                atexit.unregister(self._at_exit)  # it holds the model
