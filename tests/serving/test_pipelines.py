# SPDX-License-Identifier: Apache-2.0
"""Requests that wait behind others of their connection, whose callers send no more: some wait, some have gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import uvicorn
from padfree.serving.http.connection import Connection
from padfree.serving.loops import new_loop
from uvicorn.server import ServerState

from tests.support.http_requests import PATIENCE_S

REQUEST = b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"


async def never_answer(scope: Any, receive: Any, send: Any) -> None:
    """Begins an answer if the path says so, and waits until whoever asked has gone."""
    connection, task = scope["state"]["connection"], asyncio.current_task()
    assert task is not None
    connection.begin(task)
    try:
        await receive()
        if scope["path"] == "/begin":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        scope["state"]["gone"].append(scope["path"])


@asynccontextmanager
async def caller(requests: bytes) -> AsyncIterator[tuple[socket.socket, Connection, list[str]]]:
    """A caller who has sent requests, the connection, on which the first is under way, and who has gone so far."""
    gone, errors, made = list[str](), list[Any](), list[Connection]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    config = uvicorn.Config(never_answer, ws="none", log_config=None, log_level="critical")
    config.load()

    def make() -> Connection:
        made.append(Connection(config, ServerState(), {"gone": gone}, None))
        return made[-1]

    server = await loop.create_server(make, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname(), PATIENCE_S) as held:
        held.sendall(requests)
        while not made or not made[0]._work:
            await asyncio.sleep(0.01)
        yield held, made[0], gone
    await asyncio.sleep(0.1)
    server.close()
    assert not errors


async def until_gone(connection: Connection) -> None:
    while not connection.is_gone:
        connection.look(ending=False)
        await asyncio.sleep(0.01)


LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, new_loop], ids=["asyncio", "ours"])


def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    with closing(loop):
        return loop.run_until_complete(work)


@LOOPS
@pytest.mark.parametrize("count", [1, 2, 3])
def test_who_goes_is_noticed_whatever_waits_behind_the_first_request(count: int, make_loop: Any) -> None:
    async def go() -> list[str]:
        async with caller(count * (REQUEST % b"/wait")) as (held, connection, gone):
            held.close()
            await asyncio.wait_for(until_gone(connection), PATIENCE_S)
            await asyncio.sleep(0.05)
            return gone

    assert run_in(make_loop(), go()) == ["/wait"]


@LOOPS
@pytest.mark.parametrize(
    ("path", "shown"), [(b"/wait", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"/begin", b"HTTP/1.1 200")]
)
def test_a_provisional_answer_comes_once_and_before_another(path: bytes, shown: bytes, make_loop: Any) -> None:
    async def stop() -> bytes:
        async with caller(REQUEST % path + REQUEST % b"/wait") as (held, connection, gone):
            await asyncio.sleep(0.05)
            held.shutdown(socket.SHUT_WR)
            for _ in range(10):
                connection.look(ending=False)
                await asyncio.sleep(0.02)
            assert not gone
            connection.transport.abort()
            return held.recv(1 << 16)

    received = run_in(make_loop(), stop())
    assert received.startswith(shown)
    assert received.count(b"100 Continue") == shown.count(b"100 Continue")
    assert received.count(b"HTTP/1.1") == 1
