# SPDX-License-Identifier: Apache-2.0
"""Many requests at once, good and bad, while front-ends die: every answer belongs to its request."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from base64 import b64decode
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.folders import DEMO_DATA
from tests.support.served_models import Array, Server, expected_rows, fault, unit

CONNECTIONS = 24
POOL = 300
TOLERANCE = 1e-5
FAULTS = ("none", "run", "ids", "body", "hang up")
SHARES = (92, 2, 2, 2, 2)


@dataclass(frozen=True)
class Question:
    """A request: its bytes, the expected answer, and what it does wrong."""

    data: bytes
    status: int
    vectors: Array | None
    fault: str


@dataclass
class Tally:
    """The outcomes of requests, and what was wrong with answers."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def questions(rng: random.Random) -> list[Question]:
    """Different requests of 1 to 12 texts; some of the requests have a fault."""
    lines = [line for line in (DEMO_DATA / "texts.txt").read_text("utf-8").splitlines() if fault() not in line]
    found = []
    for number in range(POOL):
        texts = [f"{number} {rng.choice(lines)[: rng.randint(3, 80)]}" for _ in range(rng.randint(1, 12))]
        what = rng.choices(FAULTS, SHARES)[0]
        if what == "run":
            texts[-1] = fault()
        inputs: Any = [[5, 6]] if what == "ids" else texts
        body = json.dumps({"input": inputs, "encoding_format": "base64"}).encode()
        if what == "body":
            body = body[:-1]
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        vectors = unit(expected_rows(texts)) if what in ("none", "hang up") else None
        found.append(Question(head + body, {"run": 424, "ids": 422, "body": 422}.get(what, 200), vectors, what))
    return found


def judge(question: Question, status: int, body: bytes) -> str | None:
    """What is wrong with an answer, or None."""
    if status != question.status:
        return f"{status} for {question.fault}: {body[:200]!r}"
    if question.vectors is None:
        return None
    data = json.loads(body)["data"]
    found = np.array([np.frombuffer(b64decode(item["embedding"]), "<f4") for item in data])
    same = found.shape == question.vectors.shape and np.allclose(found, question.vectors, atol=TOLERANCE)
    return None if same else "the vectors are not those of the request"


async def connection(server: Server, pool: list[Question], rng: random.Random, left: Any, tally: Tally) -> None:
    """Sends requests one after the other, on a new connection whenever one ends."""
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while next(left, None) is not None:
        question = rng.choice(pool)
        try:
            reader, writer = streams = streams or await asyncio.open_connection(*server.address)
            if question.fault == "hang up":
                writer.write(question.data[: rng.randint(1, len(question.data))])
                raise ConnectionError
            writer.write(question.data)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        except (ConnectionError, asyncio.IncompleteReadError):
            tally.outcomes["hung up" if question.fault == "hang up" else "lost with its front-end"] += 1
            if streams is not None:
                streams[1].close()
            streams = None
            continue
        wrong = judge(question, int(head.split()[1]), body)
        if wrong:
            tally.wrong.append(wrong)
        tally.outcomes[str(question.status)] += 1


async def flood(server: Server, requests: int, kill_at: tuple[float, ...]) -> Tally:
    """Sends `requests` requests, and kills a front-end after each of these shares of them."""
    rng = random.Random(0)
    pool, tally, left = questions(rng), Tally(), iter(range(requests))
    tasks = [asyncio.create_task(connection(server, pool, random.Random(at), left, tally)) for at in range(CONNECTIONS)]
    for share in kill_at:
        while sum(tally.outcomes.values()) < share * requests:
            await asyncio.sleep(0.01)
        os.kill(server.front_ends[0], signal.SIGKILL)
        await asyncio.sleep(3.0)  # until there is a new one
    await asyncio.gather(*tasks)
    return tally


@pytest.mark.parametrize(
    ("requests", "kill_at"), [(1500, (0.3,)), pytest.param(100_000, (0.2, 0.5, 0.8), marks=pytest.mark.slow)]
)
def test_nothing_is_lost_or_crossed(embedder_file: Path, requests: int, kill_at: tuple[float, ...]) -> None:
    with Server(embedder_file, "--processes", "2") as server:
        tally = asyncio.run(flood(server, requests, kill_at))
        again = asyncio.run(flood(server, 200, ()))
        log = server.end()
    assert tally.wrong == []
    assert sum(tally.outcomes.values()) == requests
    assert {"200", "422", "424", "hung up"} <= set(tally.outcomes)
    # A connection to a front-end that is killed loses one request.
    assert tally.outcomes["lost with its front-end"] <= CONNECTIONS * len(kill_at)
    assert (again.wrong, again.outcomes["lost with its front-end"]) == ([], 0)
    assert log.count("is started again") == len(kill_at)


def test_floods_hold_all_faults() -> None:
    assert {question.fault for question in questions(random.Random(0))} == set(FAULTS)
