# SPDX-License-Identifier: Apache-2.0
"""The front-end's end of the socket: small groups are sent together, and each gets its own answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from padfree.runtime.budget import Budget
from padfree.serving import wire
from padfree.serving.errors import ApiError
from padfree.serving.http.link import Link

GROUP = Budget(4096, 32)


class Transport:
    """Keeps the frames that are written."""

    def __init__(self) -> None:
        self.frames: list[wire.Frame] = []

    def write(self, data: bytes) -> None:
        self.frames += wire.Frames().feed(data)


def sizes(frame: wire.Frame) -> list[int]:
    lengths: list[int] = wire.unpack_infer(frame.payload, 1).seq_lens.tolist()
    return lengths


def run(work: Callable[[Link, Transport, Any], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        link, transport = Link(0, GROUP, lambda: None, lambda: None), Transport()
        link.connection_made(transport)  # type: ignore[arg-type]

        def ask(*lengths: int, seconds: float = 60.0, client: int = 0) -> asyncio.Future[wire.Rows]:
            ids = np.arange(sum(lengths), dtype=np.int32)
            return link.infer(
                np.array(lengths, np.int32), [ids], time.perf_counter() + seconds, client or link.new_client()
            )

        await work(link, transport, ask)

    asyncio.run(main())


def test_groups_of_one_moment_travel_together_and_get_their_own_rows() -> None:
    async def work(link: Link, transport: Transport, ask: Any) -> None:
        one, two, three = ask(3), ask(2, 4), ask(1)
        await asyncio.sleep(0)
        assert [sizes(frame) for frame in transport.frames] == [[3, 2, 4, 1]]
        two.cancel()  # its caller has gone
        values = np.arange(8, dtype=np.float32).reshape(4, 2)
        link.data_received(wire.pack_rows(transport.frames[0].ticket, values, 0.1, 0.2))
        assert (await one).values.tolist() == [[0, 1]]
        assert (await three).values.tolist() == [[6, 7]]

    run(work)


def test_what_is_too_much_for_one_group_is_several() -> None:
    async def work(_link: Link, transport: Transport, ask: Any) -> None:
        for _ in range(3):
            ask(*[1] * 20)
        ask(GROUP.max_tokens)
        ask(1)
        await asyncio.sleep(0)
        assert [len(sizes(frame)) for frame in transport.frames] == [20, 20, 20, 1, 1]

    run(work)


@pytest.mark.parametrize("kind", [wire.FAILED, wire.REFUSED])
def test_groups_that_fail_together_are_asked_for_one_by_one(kind: int) -> None:
    async def work(link: Link, transport: Transport, ask: Any) -> None:
        good, bad = ask(3), ask(2)
        await asyncio.sleep(0)
        link.data_received(wire.pack(kind, transport.frames[0].ticket, b"no"))
        assert [sizes(frame) for frame in transport.frames] == [[3, 2], [3], [2]]
        link.data_received(wire.pack_rows(transport.frames[1].ticket, np.zeros((1, 2), np.float32), 0.0, 0.0))
        link.data_received(wire.pack(kind, transport.frames[2].ticket, b"no"))
        assert (await good).values.shape == (1, 2)
        with pytest.raises(ApiError, match="no"):
            await bad
        assert len(transport.frames) == 3

    run(work)


def test_nobody_waits_for_ever() -> None:
    async def work(link: Link, transport: Transport, ask: Any) -> None:
        late, refused = ask(1, seconds=-1.0), ask(1)
        await asyncio.sleep(0)
        link.give_up()
        assert not late.done()  # it was sent together with one that may wait
        link.data_received(wire.pack_busy(transport.frames[0].ticket, "full", None))
        for future in (late, refused):
            with pytest.raises(ApiError, match="full"):
                await future
        alone = ask(1, seconds=-1.0)
        await asyncio.sleep(0)
        link.give_up()
        with pytest.raises(ApiError, match="in time"):
            await alone
        unsent = ask(1)
        link.connection_lost(None)
        with pytest.raises(ApiError, match="has ended") as error:
            await unsent
        assert error.value.status == 503  # which proxies send to another server
        with pytest.raises(ApiError, match="has ended"):
            await ask(1)

    run(work)
