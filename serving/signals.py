# SPDX-License-Identifier: Apache-2.0
"""Signals that a loop hears, without an instant in which they end the process."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

UNHEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Front-ends do not hear these: the process with the model does, and ends them in good order."""
WORD = 4096
"""Most bytes that are read at once; each says that a signal came."""
RACE = "ignored due to race condition"
"""What Python reports of a signal whose handler became SIG_IGN while it came (CPython's Modules/signalmodule.c)."""


@contextmanager
def hear_signals(numbers: Sequence[signal.Signals], on_signal: Callable[[], None]) -> Iterator[None]:
    """Has the running loop call `on_signal` for each of these signals; they are ignored after the context.

    asyncio's own add_signal_handler and remove_signal_handler pass through the default, which ends the process: here
    one handler follows another. It is for the main thread. Signals that come before the last was heard may be one.
    """
    loop = asyncio.get_running_loop()

    def hear(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(on_signal)

    ours, pythons = socket.socketpair()
    with ours, pythons:
        ours.setblocking(False)
        pythons.setblocking(False)
        loop.add_reader(ours, _drain, ours)
        # A loop that waits in a system call wakes up by the byte, and only then Python calls handlers.
        before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        try:
            for number in numbers:
                signal.signal(number, hear)
            yield
        finally:
            ignore_signals(numbers)
            signal.set_wakeup_fd(before)
            loop.remove_reader(ours)


def ignore_signals(numbers: Sequence[signal.Signals]) -> None:
    """Has these signals ignored from now on, also those that come at this very moment.

    Python reports a signal that comes between its own look for signals and the new handler, as "ignored due to race
    condition", with a traceback. Here it is to be ignored, and nobody needs to read of it.
    """
    usual = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not (isinstance(unraisable.exc_value, OSError) and RACE in str(unraisable.exc_value)):
            usual(unraisable)

    sys.unraisablehook = hook
    try:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, ())  # Python looks for signals in it, and so reports them to the hook
    finally:
        sys.unraisablehook = usual


def _drain(ours: socket.socket) -> None:
    with suppress(BlockingIOError):
        ours.recv(WORD)
