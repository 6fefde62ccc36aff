# SPDX-License-Identifier: Apache-2.0
"""Hostile callers of a server, together with some ordinary ones and one who wants one text at a time.

Everything is bounded: the number of requests and the total time are, and all connections go to 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import numpy as np

from tests.serving.test_flood import Question, judge, questions
from tests.support.served_models import Array, expected_rows, unit

from .calls import GONE, Streams, ask, post
from .disturbances import Disturber
from .one_text import ENDED, TEXT, TOLERANCE, OneText
from .service import Files, Service
from .tally import Look, Tally, resident

BUSY = (408, 429, 503)
"""Statuses that a good request may also get while others attack."""
ASKERS, BURST, MANY, BUNCHES = 16, 100, 500, 8
DISTURB_EVERY_S, LOOK_EVERY_S, TELL_EVERY_S = 10.0, 2.0, 60.0
WAVE_S = 10.0
"""The time between the beginnings of waves, where requests are spread over the whole time."""
RESTLESS = 0.25
"""The share of the time in which the process with the model is killed, too. Then it warms up for just as long, and
in the second half its memory is compared."""


class Attack:
    """Everything at once, until a number of requests are sent, or a time is over.

    Args:
        service: the server that is attacked.
        files: its model and tokenizer.
        requests: how many the `ASKERS` callers send; those of the others come on top.
        seconds: the longest that the attack lasts.
        seed: for what is sent, and when.
        spread: send equal waves of requests over the whole time, each as fast as answers come.
    """

    def __init__(
        self, service: Service, files: Files, requests: int, seconds: float, seed: int, *, spread: bool = False
    ) -> None:
        self.tally = Tally()
        self._service = service
        self._rng = random.Random(seed)
        self._disturber = Disturber(service, files, self.tally, random.Random(seed + 1))
        self._left: Iterator[int] = iter(range(requests))
        self._wave = requests * WAVE_S / seconds if spread else float(requests)
        self._start = time.monotonic()
        self._seconds = seconds
        self._pool = questions(self._rng)
        self._bunches = [_bunch(self._rng.randint(1, MANY)) for _ in range(BUNCHES)]
        self._ended = False

    async def run(self) -> Tally:
        """Runs the whole attack."""
        one_text = OneText(self._service.address)
        others = [
            asyncio.create_task(self._again(work, every_s))
            for work, every_s in (
                (self._hang_up_on_many, 0.5),
                (self._hang_up_on_many, 0.5),
                (self._ask_for_many, 0.3),
                (self._read_nothing, 5.0),
                (self._write_slowly, 3.0),
                (self._come_at_once, 10.0),
                (self._disturb, DISTURB_EVERY_S),
                (self._look, LOOK_EVERY_S),
                (self._tell, TELL_EVERY_S),
            )
        ]
        await asyncio.gather(*(self._ask() for _ in range(ASKERS)))
        self._ended = True
        self.tally.seconds = time.monotonic() - self._start
        results = await asyncio.gather(*others, return_exceptions=True)
        self.tally.wrong += [repr(error) for error in results if isinstance(error, BaseException)]
        outcomes, self.tally.latencies, wrong = await asyncio.to_thread(one_text.end)
        self.tally.outcomes += outcomes
        self.tally.wrong += wrong
        self.tally.starts = self._service.starts[1:]
        return self.tally

    def _over(self) -> bool:
        return self._ended or time.monotonic() - self._start > self._seconds

    async def _again(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        """Does something again and again, with pauses."""
        while not self._over():
            try:
                await work()
            except GONE:
                self.tally.outcomes[f"{work.__name__.strip('_').replace('_', ' ')}: lost"] += 1
            until = time.monotonic() + every_s * self._rng.uniform(0.5, 1.5)
            while not self._over() and time.monotonic() < until:
                await asyncio.sleep(min(0.5, every_s))

    async def _connect(self) -> Streams:
        """A connection, as soon as there is a server."""
        while True:
            with suppress(OSError):
                return await asyncio.open_connection(*self._service.address)
            await asyncio.sleep(0.1)

    async def _ask(self) -> None:
        """Sends good and bad requests, on one connection after the other."""
        streams: Streams | None = None
        rng = random.Random(self._rng.random())
        while not self._over() and (index := next(self._left, None)) is not None:
            await self._until_wave(index)
            question = rng.choice(self._pool)
            streams = streams or await self._connect()
            try:
                if question.fault == "hang up":
                    streams[1].write(question.data[: rng.randint(1, len(question.data))])
                    raise ConnectionError
                status, body = await ask(streams, question.data)
            except GONE:
                self.tally.outcomes["hung up" if question.fault == "hang up" else "lost"] += 1
                streams[1].close()
                streams = None
            except RuntimeError as error:
                self.tally.wrong.append(str(error))
                streams[1].close()
                streams = None
            else:
                self._judge(question, status, body)

    async def _until_wave(self, index: int) -> None:
        """Waits until the wave of this request begins."""
        begin = self._start + WAVE_S * (index // self._wave)
        while not self._over() and (wait := begin - time.monotonic()) > 0:
            await asyncio.sleep(min(0.5, wait))

    def _judge(self, question: Question, status: int, body: bytes) -> None:
        if status == 424 and ENDED.encode() in body:
            self.tally.outcomes["told of the end"] += 1
            return
        self.tally.outcomes[str(status)] += 1
        if status not in BUSY and (wrong := judge(question, status, body)):
            self.tally.wrong.append(wrong)

    async def _hang_up_on_many(self) -> None:
        _, writer = await self._connect()
        writer.write(post({"inputs": self._rng.choice(self._bunches)[0]}))
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        writer.close()
        self.tally.outcomes["hung up on many"] += 1

    async def _ask_for_many(self) -> None:
        texts, wanted = self._rng.choice(self._bunches)
        streams = await self._connect()
        try:
            status, body = await ask(streams, post({"inputs": texts}))
        finally:
            streams[1].close()
        self.tally.outcomes[f"many: {status}"] += 1
        if status == 200 and not np.allclose(json.loads(body), wanted, atol=TOLERANCE):
            self.tally.wrong.append("many: the vectors are not those of the texts")

    async def _read_nothing(self) -> None:
        _, writer = await self._connect()
        writer.write(post({"inputs": [TEXT * 500] * 50}, "/tokenize"))
        await asyncio.sleep(self._rng.uniform(1, 15))
        writer.close()
        self.tally.outcomes["read nothing"] += 1

    async def _write_slowly(self) -> None:
        _, writer = await self._connect()
        for letter in post({"inputs": TEXT})[:30]:
            writer.write(bytes([letter]))
            await asyncio.sleep(0.2)
        writer.close()
        self.tally.outcomes["wrote slowly"] += 1

    async def _come_at_once(self) -> None:
        """Opens many connections that all ask at the same moment."""
        await asyncio.gather(*(self._come() for _ in range(BURST)))

    async def _come(self) -> None:
        question = self._rng.choice([one for one in self._pool[:20] if one.fault == "none"])
        streams = await self._connect()
        try:
            self._judge(question, *await ask(streams, question.data))
        except GONE:
            self.tally.outcomes["lost"] += 1
        finally:
            streams[1].close()

    async def _disturb(self) -> None:
        self._disturber.is_calm = time.monotonic() - self._start > RESTLESS * self._seconds
        await self._disturber.disturb()

    async def _tell(self) -> None:
        """Writes a line of progress, for those who watch for an hour."""
        seconds, wrong = time.monotonic() - self._start, len(self.tally.wrong)
        sys.stderr.write(f"{seconds:.0f} s: {self.tally.requests} requests, {wrong} wrong\n")

    async def _look(self) -> None:
        model, kept = self._service.server.process.pid, self._disturber.kept
        with suppress(FileNotFoundError):  # a front-end ended while its memory was read
            everybody = sum(map(resident, [model, *self._service.server.front_ends]))
            second = time.monotonic() - self._start
            self.tally.memory.append(Look(second, (model, resident(model)), (kept, resident(kept)), everybody))


def _bunch(count: int) -> tuple[list[str], Array]:
    """Texts and their vectors."""
    texts = [f"{at} {TEXT}" for at in range(count)]
    return texts, unit(expected_rows(texts))
