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
RACE = """
import ctypes, signal, sys
from padfree.serving import signals

NUMBER = signal.SIGTERM
exchange = signal.signal
handler_in_c, handle_in_c = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
handler_in_c.restype = ctypes.c_void_p
handle_in_c.argtypes = ctypes.c_int, ctypes.c_void_p

def exchange_late(number, handler):  # the signal comes after Python looked for signals, and before it is ignored
    before = handler_in_c(number)
    exchange(number, handler)
    handle_in_c(number, before)
    signal.raise_signal(number)
    exchange(number, handler)

def ignore_loudly(numbers):
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)

exchange(NUMBER, lambda *_: None)
signal.signal = exchange_late
{"quietly": signals.ignore_signals, "loudly": ignore_loudly}[sys.argv[1]]([NUMBER])
signal.signal = exchange
signal.raise_signal(NUMBER)
"""
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
        stderr = one.stderr.read()
        assert one.returncode == 0, stderr
        assert not stderr


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


@pytest.mark.parametrize(("way", "reports"), [("quietly", 0), ("loudly", 1)])
def test_a_signal_that_comes_while_its_handler_goes_is_no_error(way: str, reports: int) -> None:
    one = subprocess.run([sys.executable, "-c", RACE, way], stderr=subprocess.PIPE, check=True, timeout=MOST_END_S)
    assert one.stderr.count(b"ignored due to race condition") == reports
    assert reports or not one.stderr
