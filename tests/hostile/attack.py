# SPDX-License-Identifier: Apache-2.0
"""Callers of a server who mean it no good, beside some who do, and one who wants one text at a time.

Everything is bounded: requests by their number, all of it by a time, and all connections are to 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.serving.test_flood import Question, judge, questions
from tests.support.served_models import Server, expected, unit

BUSY = (408, 429, 503)
"""What a good request may be told, too, while others attack."""
ASKERS = 16
TEXT = "the cat sat on the mat"
MANY = 500
STOP_S, KILL_EVERY_S = 1.0, 15.0
TOLERANCE = 1e-5
PATIENCE_S = 60.0


@dataclass
class Tally:
    """What came.

    Attributes:
        outcomes: how many requests ended how.
        wrong: answers that are not those of their requests.
        latencies: seconds of the one who wants one text at a time.
        memory: (seconds since the beginning, bytes of all processes of the server).
        started_again: front-ends that were killed or stopped.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    started_again: int = 0


class Attack:
    """Everything at once, until so many requests are sent, or a time is over.

    Args:
        server: is attacked; its first front-ends are killed and stopped.
        model: its file, whose tokenizer is replaced.
        requests: of the askers; others come on top.
        seconds: the longest that it lasts.
        seed: of what is sent, and when.
    """

    def __init__(self, server: Server, model: Path, requests: int, seconds: float, seed: int) -> None:
        self.tally = Tally()
        self._server, self._model = server, model
        self._rng = random.Random(seed)
        self._left: Iterator[int] = iter(range(requests))
        self._start = time.monotonic()
        self._until = self._start + seconds
        self._pool = questions(self._rng)
        self._ended = False

    async def run(self) -> Tally:
        """All of it."""
        others = [
            asyncio.create_task(work)
            for work in (
                self._again(self._one_text, 0.02),
                *(self._again(self._hang_up_on_many, 0.5) for _ in range(2)),
                self._again(self._ask_for_many, 0.3),
                self._again(self._read_nothing, 5.0),
                self._again(self._write_slowly, 3.0),
                self._again(self._disturb, KILL_EVERY_S),
                self._again(self._look, 1.0),
            )
        ]
        await asyncio.gather(*(self._ask() for _ in range(ASKERS)))
        self._ended = True
        for task in others:
            task.cancel()
        results = await asyncio.gather(*others, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception):
                self.tally.wrong.append(repr(error))
        return self.tally

    def _over(self) -> bool:
        return self._ended or time.monotonic() > self._until

    async def _again(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        """Does a thing again and again, with pauses."""
        while not self._over():
            with suppress(ConnectionError, asyncio.IncompleteReadError, OSError):
                await work()
            await asyncio.sleep(every_s * self._rng.uniform(0.5, 1.5))

    async def _ask(self) -> None:
        """One connection after the other, with good and bad requests."""
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        rng = random.Random(self._rng.random())
        while not self._over() and next(self._left, None) is not None:
            question = rng.choice(self._pool)
            try:
                streams = streams or await asyncio.open_connection(*self._server.address)
                if question.fault == "hang up":
                    streams[1].write(question.data[: rng.randint(1, len(question.data))])
                    raise ConnectionError
                status, body = await _answer(streams, question.data)
            except (ConnectionError, asyncio.IncompleteReadError, OSError):
                self.tally.outcomes["hung up" if question.fault == "hang up" else "lost with its front-end"] += 1
                if streams is not None:
                    streams[1].close()
                streams = None
                continue
            self._judge(question, status, body)

    def _judge(self, question: Question, status: int, body: bytes) -> None:
        self.tally.outcomes[str(status)] += 1
        if status not in BUSY and (wrong := judge(question, status, body)):
            self.tally.wrong.append(wrong)

    async def _one_text(self) -> None:
        """The one for whom all of this is done."""
        wanted = unit(expected([TEXT]))
        streams = await asyncio.open_connection(*self._server.address)
        try:
            while not self._over():
                start = time.monotonic()
                status, body = await _answer(streams, _post({"inputs": TEXT}))
                self.tally.outcomes[f"one text {status}"] += 1
                self.tally.latencies.append(time.monotonic() - start)
                if status == 200 and not np.allclose(json.loads(body), wanted, atol=TOLERANCE):
                    self.tally.wrong.append("one text: the vector is not that of the text")
                await asyncio.sleep(0.02)
        finally:
            streams[1].close()

    async def _hang_up_on_many(self) -> None:
        _, writer = await asyncio.open_connection(*self._server.address)
        writer.write(_post({"inputs": [f"{at} {TEXT}" for at in range(MANY)]}))
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        writer.close()

    async def _ask_for_many(self) -> None:
        texts = [f"{at} {TEXT}" for at in range(self._rng.randint(1, MANY))]
        streams = await asyncio.open_connection(*self._server.address)
        try:
            status, body = await _answer(streams, _post({"inputs": texts}))
        finally:
            streams[1].close()
        self.tally.outcomes[f"many {status}"] += 1
        if status == 200 and not np.allclose(json.loads(body), unit(expected(texts)), atol=TOLERANCE):
            self.tally.wrong.append("many: the vectors are not those of the texts")

    async def _read_nothing(self) -> None:
        _, writer = await asyncio.open_connection(*self._server.address, limit=1 << 10)
        writer.write(_post({"inputs": [TEXT * 500] * 50}, "/tokenize"))
        await asyncio.sleep(self._rng.uniform(1, 15))
        writer.close()

    async def _write_slowly(self) -> None:
        _, writer = await asyncio.open_connection(*self._server.address)
        for letter in _post({"inputs": TEXT})[:30]:
            writer.write(bytes([letter]))
            await asyncio.sleep(0.2)
        writer.close()

    async def _disturb(self) -> None:
        """Kills or stops a process of the server, or puts another file in the place of the tokenizer."""
        what = self._rng.choice(("kill", "stop", "stop the model", "files"))
        self.tally.outcomes[what] += 1
        if what == "files":
            file = self._model.with_name(self._model.name + ".tokenizer.json")
            file.with_suffix(".new").write_text("{}", "utf-8")
            file.with_suffix(".new").replace(file)
        elif what == "stop the model":
            os.kill(self._server.process.pid, signal.SIGSTOP)
            await asyncio.sleep(STOP_S)
            os.kill(self._server.process.pid, signal.SIGCONT)
        elif front_ends := self._server.front_ends:
            os.kill(self._rng.choice(front_ends), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
            self.tally.started_again += 1

    async def _look(self) -> None:
        pids = [self._server.process.pid, *self._server.front_ends]
        self.tally.memory.append((time.monotonic() - self._start, sum(map(_resident, pids))))


async def _answer(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes) -> tuple[int, bytes]:
    streams[1].write(data)
    try:
        return await asyncio.wait_for(_read(streams[0]), PATIENCE_S)
    except asyncio.TimeoutError as error:
        raise RuntimeError(f"no answer within {PATIENCE_S:.0f} s") from error


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    return int(head.split()[1]), await reader.readexactly(int(head.split(b"content-length: ")[1].split()[0]))


def _post(fields: dict[str, Any], path: str = "/embed") -> bytes:
    body = json.dumps(fields).encode()
    return f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def _resident(pid: int) -> int:
    with suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return 1024 * int(found[1]) if found else 0
    return 0
