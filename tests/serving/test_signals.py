# SPDX-License-Identifier: Apache-2.0
"""Signals to a process with an event loop: there is no moment in which one of a flood of signals ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

MOST_END_S = 60.0
PAUSE_S = 1e-3  # the other process needs a core, too
PROCESS = """
import asyncio, signal, sys, threading, time
from padfree.serving.signals import hear_signals

NUMBERS = (signal.SIGTERM, signal.SIGINT)

async def main():
    heard, stop = 0, asyncio.Event()
    def hear():
        nonlocal heard
        heard += 1
        if heard == 2:
            stop.set()
    with hear_signals(NUMBERS, hear):
        print("ready", flush=True)
        await stop.wait()

def new_loop(name):
    if name == "asyncio":
        return asyncio.new_event_loop()
    import uvloop
    return uvloop.new_event_loop()

thread = threading.Thread(target=lambda: time.sleep(1e9), daemon=True)  # which hears signals, too
thread.start()
for _ in range(3):  # many ends
    loop = new_loop(sys.argv[1])
    loop.run_until_complete(main())
    loop.close()
    assert all(signal.getsignal(number) == signal.SIG_IGN for number in NUMBERS)
print("over", flush=True)
"""


@pytest.mark.parametrize(("loop", "number"), [("asyncio", signal.SIGTERM), ("uvloop", signal.SIGINT)])
def test_no_signal_of_a_flood_ends_the_process(loop: str, number: int) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="pip install 'padfree[serve]'")
    with subprocess.Popen([sys.executable, "-c", PROCESS, loop], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stderr is not None
        assert one.stdout.readline() == b"ready\n"
        until = time.monotonic() + MOST_END_S
        while one.poll() is None and time.monotonic() < until:
            one.send_signal(number)
            time.sleep(PAUSE_S)
        one.kill()
        assert one.stdout.read().endswith(b"over\n")
        assert one.returncode == 0, one.stderr.read()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_loop_that_waits_hears_one_signal_at_once(loop: str) -> None:
    """Container runtimes send a single signal, and nothing else wakes the loop up."""
    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="pip install 'padfree[serve]'")
    source = PROCESS.replace("heard == 2", "heard == 1").replace("range(3)", "range(1)")
    with subprocess.Popen([sys.executable, "-c", source, loop], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        one.send_signal(signal.SIGTERM)
        try:
            assert one.wait(MOST_END_S) == 0
        finally:
            one.kill()
