# SPDX-License-Identifier: Apache-2.0
"""The process with the model: it opens the sockets, starts front-ends and looks after them, and ends in good order.

Every front-end has a listening socket of its own at the same port, and the kernel deals connections out among them. The
sockets belong to this process: connections that come while a front-end is started again wait for it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from padfree.contract.child_signals import held_back
from padfree.contract.machine import cores
from padfree.runtime import Budget, Session, SessionError
from padfree.runtime.batching import group_budget, run_budget
from padfree.runtime.pool import DevicePool, machine_devices
from padfree.runtime.text import Choices, ServedModel, describe

from . import wire
from .access_log import check as check_access_log
from .engine import Channel, Engine, Inbox
from .garbage import leave_out_what_stays
from .http.process import FrontEnd, main
from .listening import listen
from .loops import new_loop
from .metrics import WIDTH, ProcessCounters
from .open_files import allow_connections
from .options import ServeOptions
from .reporter import Reporter
from .signals import UNHEARD, hear_signals
from .speed import measure
from .summary import summary

RESTART_S = 1.0
"""A front-end that ends by itself is started again, at most once in this time."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The first one ends the server in good order, the second at once; others change nothing."""
PING_S = 1.0
"""How often front-ends are asked whether they are there."""
HANG_S = 5.0
"""A front-end that has not answered for so long is ended, and another one is started."""
START_S = 60.0
"""How long front-ends may take to start."""


def serve(
    model: Path,
    options: ServeOptions,
    choices: Choices,
    *,
    devices: Sequence[int] | None = (0,),
    allow_other_gpu: bool = False,
    contexts: int = 2,
    cuda_graphs: bool = False,
    ends_process: bool = False,
    on_ready: Callable[[str], None],
    on_summary: Callable[[Mapping[str, str]], object] = lambda _: None,
) -> None:
    """Serves a plan or a rewritten .onnx file until SIGTERM or SIGINT comes, and answers what was taken before.

    Args:
        model: the file.
        options: address, processes, limits.
        choices: what the file does not say.
        devices: CUDA device numbers, for plans; None: all of this machine.
        allow_other_gpu: as for Session.
        contexts: runs under way at once on each GPU.
        cuda_graphs: whether recurring sizes are captured; only for loads of few sizes, as requests wait for captures.
        ends_process: whether the process does nothing else afterwards; signals that come then are ignored.
        on_ready: is called with the address once requests are taken.
        on_summary: is called next, with what is served, and how.

    Raises:
        SessionError: the model, the tokenizer or the address cannot be used.
    """
    check_access_log(options.access_log)
    allow_connections()
    with _open(model, devices, allow_other_gpu=allow_other_gpu, contexts=contexts, cuda_graphs=cuda_graphs) as session:
        served_model = describe(model, session.metadata, replace(choices, tags=True))
        numbers = multiprocessing.get_context("spawn").RawArray("d", (options.front_ends + 1) * WIDTH)
        runs = session.runs if isinstance(session, DevicePool) else contexts
        speed = measure(session, served_model, runs)
        budget = run_budget(session.budget, speed)
        counters = ProcessCounters(numbers, options.front_ends)
        engine = Engine(
            session, served_model, options.limits, runs, counters, budget=budget, tokens_a_second=speed.tokens_a_second
        )
        loop = new_loop()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            asyncio.set_event_loop(loop)
            supervisor = _Supervisor(engine, served_model, options, numbers, budget)
            summary_lines = summary(served_model, session.metadata, options, budget, speed.tokens_a_second)

            def begin(url: str) -> None:
                on_ready(url)
                on_summary(summary_lines)

            loop.run_until_complete(supervisor.run(begin))
        finally:
            engine.close()
            asyncio.set_event_loop(None)
            loop.close()
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if ends_process else handler)


def _open(
    model: Path, devices: Sequence[int] | None, *, allow_other_gpu: bool, contexts: int, cuda_graphs: bool
) -> Session | DevicePool:
    """A session of one GPU, or of the CPU; a pool of several GPUs."""
    options: dict[str, Any] = {"allow_other_gpu": allow_other_gpu, "contexts": contexts, "cuda_graphs": cuda_graphs}
    numbers = machine_devices() if devices is None else tuple(devices)
    if len(numbers) == 1:
        return Session(model, device=numbers[0], **options)
    return DevicePool.open(model, numbers, **options)


class _Supervisor:
    def __init__(
        self, engine: Engine, served_model: ServedModel, options: ServeOptions, numbers: object, budget: Budget
    ) -> None:
        self._engine, self._served_model, self._options = engine, served_model, options
        self._numbers, self._budget = numbers, budget
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[int, BaseProcess] = {}
        self._channels: dict[int, Channel] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._ready: set[int] = set()
        self._last_answers: dict[int, float] = {}  # time.monotonic() of the last answer to a ping
        self._hung_front_ends: set[int] = set()
        self._ending = asyncio.Event()
        self._state_change = asyncio.Event()
        self._all_started = False
        self._leaving = False
        self._is_forced = False
        self._reporter = Reporter(ProcessCounters(numbers, options.front_ends))

    async def run(self, on_ready: Callable[[str], None]) -> None:
        """Serves until a signal comes."""
        with hear_signals(SIGNALS, self._stop):  # ignored afterwards: one more would disturb the end
            await self._serve(on_ready)

    async def _serve(self, on_ready: Callable[[str], None]) -> None:
        listeners = listen(self._options.host, self._options.port, self._options.front_ends)
        host, port = listeners[0].getsockname()[:2]
        tasks = [asyncio.create_task(work) for work in (self._reporter.run(), self._look_after())]
        watching = [asyncio.create_task(self._keep(at, listener)) for at, listener in enumerate(listeners)]
        try:
            await self._until_ready(watching)
            leave_out_what_stays()
            if not self._ending.is_set():
                on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await self._ending.wait()
        finally:
            self._ending.set()
            for listener in listeners:
                listener.close()
            await self._end()
            await asyncio.gather(*watching, return_exceptions=True)
            for task in tasks:
                task.cancel()
            self._reporter.report()

    def _stop(self) -> None:
        """The first signal ends the server in good order, after a while if that was asked for, the second at once."""
        self._is_forced = self._leaving
        self._leaving = True
        if self._is_forced or not (self._options.drain_seconds and self._all_started):
            self._end_now()
            return
        for channel in self._channels.values():
            channel.send(wire.pack(wire.LEAVE, 0))
        asyncio.get_running_loop().call_later(self._options.drain_seconds, self._end_now)

    def _end_now(self) -> None:
        self._ending.set()
        self._state_change.set()

    async def _until_ready(self, watching: list[asyncio.Task[None]]) -> None:
        until = time.monotonic() + START_S
        while len(self._ready) < self._options.front_ends and not self._ending.is_set():
            for task in watching:
                if task.done():
                    task.result()
            if time.monotonic() > until:
                raise SessionError(f"the front-end processes did not start within {START_S:.0f} s")
            self._state_change.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._state_change.wait(), 0.5)
        self._all_started = True

    async def _keep(self, at: int, listener: socket.socket) -> None:
        """Starts a front-end, and starts it again whenever it ends by itself."""
        while not self._ending.is_set():
            start_s = time.monotonic()
            try:
                code = await (await self._start(at, listener))
                why = f"did not answer for {HANG_S:.0f} s" if at in self._hung_front_ends else f"ended with code {code}"
                self._hung_front_ends.discard(at)
            except OSError as error:  # no memory, or no more processes: perhaps for a while only
                why = f"could not be started ({error})"
            if self._ending.is_set():
                return
            if not self._all_started:
                raise SessionError(f"a front-end process {why} before it served")
            self._reporter.say(f"front-end {at} {why} and is started again")
            await asyncio.sleep(max(0.0, start_s + RESTART_S - time.monotonic()))

    async def _look_after(self) -> None:
        """Ends front-ends that hang: connections would come to them and wait for ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(PING_S)
            now = time.monotonic()
            if now - last > 2 * PING_S:  # this process itself was suspended
                self._last_answers = dict.fromkeys(self._last_answers, now)
            last = now
            for at in [at for at, last_answer in self._last_answers.items() if now - last_answer > HANG_S]:
                del self._last_answers[at]
                self._hung_front_ends.add(at)
                self._processes[at].kill()
            for channel in self._channels.values():
                channel.send(wire.pack(wire.PING, 0))

    async def _start(self, at: int, listener: socket.socket) -> asyncio.Future[int]:
        """Starts a front-end; the future gets its exit code when it ends."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        front_end = FrontEnd(
            self._served_model,
            self._options,
            self._budget.max_tokens,
            group_budget(self._budget),
            at,
            max(1, cores() // self._options.front_ends),
        )
        process = self._context.Process(
            target=main, args=(front_end, listener, theirs, self._numbers), name=f"padfree-front-end-{at}", daemon=True
        )
        with held_back(UNHEARD):
            process.start()
        theirs.close()
        channel = self._channels[at] = Channel(lambda frame: self._take(at, frame))
        inbox = self._inboxes[at] = Inbox(self._engine, self._served_model.inputs, channel.send)
        ours.setblocking(False)
        await loop.create_unix_connection(lambda: channel, sock=ours)
        self._processes[at] = process
        if self._leaving:
            channel.send(wire.pack(wire.DRAIN if self._ending.is_set() else wire.LEAVE, 0))
        ended: asyncio.Future[int] = loop.create_future()

        def end() -> None:
            loop.remove_reader(process.sentinel)
            process.join()
            channel.close()
            inbox.close()
            self._last_answers.pop(at, None)
            if not ended.done():
                ended.set_result(process.exitcode or 0)

        loop.add_reader(process.sentinel, end)
        return ended

    def _take(self, at: int, frame: wire.Frame) -> None:
        if frame.kind == wire.INFER:
            self._inboxes[at].infer(frame)
        elif frame.kind == wire.CANCEL:
            self._inboxes[at].cancel(frame.ticket)
        elif frame.kind == wire.PONG:
            self._last_answers[at] = time.monotonic()
        elif frame.kind == wire.READY:
            self._last_answers[at] = time.monotonic()
            self._ready.add(at)
            self._state_change.set()
        elif frame.kind == wire.LOG:
            self._reporter.say(bytes(frame.payload).decode())

    async def _end(self) -> None:
        """Lets front-ends finish what they have; those that take too long are killed."""
        for channel in self._channels.values():
            channel.send(wire.pack(wire.DRAIN, 0))
        until = time.monotonic() + self._options.grace_seconds + 1
        while any(process.is_alive() for process in self._processes.values()):
            if self._is_forced or time.monotonic() > until:
                for process in self._processes.values():
                    process.kill()
            await asyncio.sleep(0.02)
