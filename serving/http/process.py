# SPDX-License-Identifier: Apache-2.0
"""A front-end process: reads HTTP, tokenises, asks the process with the model, answers."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from padfree.contract.child_signals import let_through
from padfree.runtime import Budget
from padfree.runtime.text import ServedModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from .. import wire
from ..access_log import AccessLog
from ..garbage import leave_out_what_stays
from ..listening import BACKLOG
from ..metrics import ProcessCounters
from ..open_files import ConnectionCount
from ..options import ServeOptions
from ..signals import UNHEARD
from .calls import Calls
from .cohere import Cohere
from .connection import IDLE_S, Connection
from .docs import Docs
from .link import Link
from .missing import no_route
from .openai import OpenAI
from .requests import Requests
from .status import Status
from .tags import Tags
from .tei import Tei
from .texts import Texts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LOOK_S = 0.25
"""How often groups that have waited too long are looked for."""
CANNOT_START = 3
"""The exit code of a front-end that cannot use what it was given."""
HUNG_S = 30.0
"""A front-end that hangs for this long ends itself: no other process may be left that could."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class FrontEnd:
    """What a front-end is told: all that it needs, for files may be others when it is started again.

    Attributes:
        served_model: the model, and what its tokenizer's file held.
        options: limits and keys.
        max_batch_tokens: what one run of the model takes.
        group: the most that small requests of one moment make together.
        at: its row of counters.
        threads: how many the tokenizers library uses.
    """

    served_model: ServedModel
    options: ServeOptions
    max_batch_tokens: int | None
    group: Budget
    at: int
    threads: int


class _Server(uvicorn.Server):
    """Ends when it is told to, not by signals: the process with the model hears those, and ends its front-ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


def main(front_end: FrontEnd, listener: socket.socket, channel: socket.socket, numbers: Any) -> None:
    """The process.

    Args:
        front_end: what to do.
        listener: where connections come in.
        channel: to the process with the model.
        numbers: the shared memory of the counters.
    """
    for number in UNHEARD:
        signal.signal(number, signal.SIG_IGN)
    let_through(UNHEARD)
    _wake_when_left_alone()
    # Read by the library when it first has work.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if front_end.threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(front_end.threads)
    try:
        whole_tokenizer = front_end.served_model.tokenizer.tokenizer()
    except Exception as error:  # nobody reads this process's own output
        channel.sendall(wire.pack(wire.LOG, 0, f"front-end {front_end.at} cannot start: {error!r}".encode()))
        raise SystemExit(CANNOT_START) from error
    server: _Server

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with _serving(app, front_end, whole_tokenizer, channel, numbers, requests, server):
            yield

    requests = Requests(Starlette(lifespan=lifespan, exception_handlers={HTTPException: no_route}))
    server = _Server(_config(requests, front_end.options.grace_seconds))
    server.run(sockets=[listener])


@asynccontextmanager
async def _serving(
    app: Starlette,
    front_end: FrontEnd,
    whole_tokenizer: Tokenizer,
    channel: socket.socket,
    numbers: Any,
    requests: Requests,
    server: _Server,
) -> AsyncIterator[None]:
    """Connects with the process with the model, and gives the application its routes, until the server ends."""

    def end() -> None:
        server.should_exit = True

    served_model, options = front_end.served_model, front_end.options
    link = Link(front_end.at, front_end.group, on_drain=end, on_end=end, token_rows=served_model.has_token_rows)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=channel)
    counters = ProcessCounters(numbers, front_end.at)
    texts = Texts(served_model, link, counters, options.limits.waiting_tokens)
    calls = Calls(served_model, options, texts, link, counters)
    for part in (
        OpenAI(calls),
        Cohere(calls),
        Tei(calls, texts, whole_tokenizer),
        Tags(calls, texts),
        Status(calls, texts, counters, front_end.max_batch_tokens, link),
        Docs(served_model, options),
    ):
        app.router.routes.extend(part.routes())
    app.router.redirect_slashes = False  # to the Host that the caller names, whichever that is
    if options.access_log is not None:
        requests.log = AccessLog(options.access_log, link.log)
    looking = asyncio.create_task(_look(link, calls, requests, server, ConnectionCount(front_end.at)))
    leave_out_what_stays()
    link.ready()
    yield
    looking.cancel()
    texts.close()
    if requests.log is not None:
        requests.log.close()


def _config(requests: Requests, grace_s: float) -> uvicorn.Config:
    """How uvicorn serves; answers under way get `grace_s` seconds when the server ends."""
    return uvicorn.Config(
        requests,
        http=Connection,
        ws="none",
        proxy_headers=False,
        lifespan="on",
        backlog=BACKLOG,
        access_log=False,
        log_config=None,
        log_level="critical",
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=None if math.isinf(grace_s) else max(1, int(grace_s)),
    )


def _wake_when_left_alone() -> None:
    """A stopped process goes on when the process with the model ends, and then ends, too.

    It would otherwise keep the port, which no other server could share.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


async def _look(
    link: Link, calls: Calls, requests: Requests, server: uvicorn.Server, connection_count: ConnectionCount
) -> None:
    """Looks now and then for what takes too long."""
    while True:
        signal.setitimer(signal.ITIMER_REAL, HUNG_S)  # SIGALRM, which nobody handles, ends the process
        await asyncio.sleep(LOOK_S)
        link.give_up()
        requests.is_leaving = link.is_leaving
        if requests.log is not None:
            requests.log.tell_lost()
        connections: list[Any] = list(server.server_state.connections)
        line = connection_count.look(len(connections))
        if line is not None:
            link.log(line)
        calls.unread_bytes = sum(one.look(ending=server.should_exit) for one in connections)
