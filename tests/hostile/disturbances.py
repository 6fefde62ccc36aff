# SPDX-License-Identifier: Apache-2.0
"""What is done to a server's processes, files and disk while callers ask; after each it has to recover."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .calls import get_status
from .service import Files, Service
from .tally import Tally

STOP_S, LONG_STOP_S, FULL_S = 1.0, 6.0, 4.0
SILENT_S = 4.5
"""How soon after the process with the model stops /health has to report it."""
WELL_S = 40.0
"""How soon a server has to recover."""
HALF = 0.5
PROCESSES = 2
"""The number of the server's front-ends."""

Work = Callable[[], Awaitable[None]]


class Disturber:
    """Kills and stops processes, replaces files, fills the disk.

    Args:
        service: the server.
        files: its model and tokenizer.
        tally: is told what was done, and what went wrong.
        rng: makes the choices.

    Attributes:
        is_calm: whether the process with the model is no longer killed, nor the front-end `kept`, so that their memory
            can be compared.
        kept: the process id of that front-end; 0 before there is one.
    """

    def __init__(self, service: Service, files: Files, tally: Tally, rng: random.Random) -> None:
        self._service, self._files, self._tally, self._rng = service, files, tally, rng
        self.is_calm = False
        self.kept = 0
        self._left: list[Work] = []

    async def disturb(self) -> None:
        """Does one thing, each of them once before any is repeated, and waits until the server has recovered."""
        if self.is_calm and not self.kept:
            self.kept = max(self._service.server.front_ends, default=0)
            self._left.clear()
        if not self._left:
            self._left = [*self._on_front_ends(), *(() if self.is_calm else (self._kill_model, self._kill_both))]
            self._rng.shuffle(self._left)
        work = self._left.pop()
        await work()
        self._tally.disturbances[work.__name__.strip("_").replace("_", " ")] += 1
        await self._until_well(work.__name__)

    def _on_front_ends(self) -> tuple[Work, ...]:
        """What is done throughout: the process with the model may be stopped for a while, but not killed."""
        return (
            self._kill_front_end,
            self._stop_front_end,
            self._stop_model,
            self._stop_model_for_long,
            self._replace_files,
            self._fill_disk,
        )

    async def _kill_front_end(self) -> None:
        self._signal_one(signal.SIGKILL)

    async def _stop_front_end(self) -> None:
        """Stops a front-end; those connected to it wait until the server notices and ends it."""
        pid = self._signal_one(signal.SIGSTOP)
        until = time.monotonic() + WELL_S
        while pid in self._service.server.front_ends and time.monotonic() < until:
            await asyncio.sleep(0.2)

    async def _stop_model(self) -> None:
        await self._while_stopped(asyncio.sleep(STOP_S))

    async def _stop_model_for_long(self) -> None:
        """Stops the process with the model for so long that callers are told."""
        await self._while_stopped(self._look_at_health())

    async def _replace_files(self) -> None:
        self._files.replace()

    async def _fill_disk(self) -> None:
        """Lets no file grow, as on a full disk: not even the log, just when there is something to write."""
        pids = [self._service.server.process.pid, *self._service.server.front_ends]
        limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
        for pid, (_, hard) in limits.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
        self._signal_one(signal.SIGKILL)
        await asyncio.sleep(FULL_S)
        for pid, limit in limits.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)

    async def _kill_model(self) -> None:
        if wrong := await self._service.kill(damaged=self._rng.random() < HALF):
            self._tally.wrong.append(wrong)

    async def _kill_both(self) -> None:
        """A stopped front-end must not keep the port from the next server."""
        self._signal_one(signal.SIGSTOP)
        await self._service.kill(damaged=False)

    async def _while_stopped(self, work: Awaitable[None]) -> None:
        process = self._service.server.process
        process.send_signal(signal.SIGSTOP)
        try:
            await work
        finally:
            process.send_signal(signal.SIGCONT)

    async def _look_at_health(self) -> None:
        await asyncio.sleep(SILENT_S)
        status = await get_status(self._service.address, "/health", LONG_STOP_S)
        if status != 503:
            self._tally.wrong.append(f"/health was {status} while the process with the model stood still")
        await asyncio.sleep(LONG_STOP_S - SILENT_S)

    def _signal_one(self, number: int) -> int:
        """Sends a signal to a front-end; returns its process id."""
        pids = [pid for pid in self._service.server.front_ends if pid != self.kept]
        pid = self._rng.choice(pids) if pids else 0
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    async def _until_well(self, after: str) -> None:
        until = time.monotonic() + WELL_S
        while True:
            alive = len(self._service.server.front_ends) == PROCESSES
            if alive and await get_status(self._service.address, "/health", 1.0) == 200:
                return
            if time.monotonic() > until:
                self._tally.wrong.append(f"not well {WELL_S:.0f} s after {after}: {self._service.server.log()[-500:]}")
                return
            await asyncio.sleep(0.2)
