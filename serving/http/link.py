# SPDX-License-Identifier: Apache-2.0
"""The front-end's end of the socket to the process with the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, cast

import numpy.typing as npt

from .. import wire
from ..errors import ApiError, busy, failed, not_tokenized

Array = npt.NDArray[Any]

SLACK_S = 0.5
"""The process with the model drops what is late by itself; so much later it is taken to hang."""


class Link(asyncio.Protocol):
    """Sends groups of tokens, and hands every answer to who waits for it.

    Args:
        on_drain: is called when the server ends, and the front-end is to finish what it has.
        on_end: is called when the process with the model is gone.
    """

    def __init__(self, on_drain: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._on_drain, self._on_end = on_drain, on_end
        self._frames = wire.Frames()
        self._tickets = count()
        self._waiting: dict[int, tuple[float, asyncio.Future[wire.Rows]]] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of this class

    def connection_lost(self, _error: Exception | None) -> None:
        """Nobody answers any more."""
        self._transport = None
        for _, future in self._waiting.values():
            _settle(future, _gone())
        self._waiting.clear()
        self._on_end()

    def data_received(self, data: bytes) -> None:
        """Hands out answers."""
        for frame in self._frames.feed(data):
            if frame.kind == wire.DRAIN:
                self._on_drain()
                continue
            _, future = self._waiting.pop(frame.ticket, (0.0, None))
            if future is not None:
                _settle(future, wire.unpack_rows(frame.payload) if frame.kind == wire.ROWS else _error(frame))

    def give_up(self) -> None:
        """Fails groups that have waited for too long; called now and then."""
        now = time.perf_counter()
        late = [ticket for ticket, (until, _) in self._waiting.items() if until < now - SLACK_S]
        for ticket in late:
            _settle(self._waiting.pop(ticket)[1], busy("the model did not answer in time; try again later"))

    def infer(self, seq_lens: Array, columns: Sequence[Array], until: float) -> asyncio.Future[wire.Rows]:
        """Asks for the rows of a group until a time of time.perf_counter(); the future fails with an ApiError."""
        future: asyncio.Future[wire.Rows] = self._loop.create_future()
        if self._transport is None:
            future.set_exception(_gone())
            return future
        ticket = next(self._tickets)
        self._waiting[ticket] = until, future
        self._transport.write(wire.pack_infer(ticket, seq_lens, columns, until - time.perf_counter()))
        return future

    def log(self, line: str) -> None:
        """Gives a line to the process that writes the log."""
        self._tell(wire.LOG, line)

    def ready(self) -> None:
        """Says that requests are taken."""
        self._tell(wire.READY)

    def _tell(self, kind: int, text: str = "") -> None:
        if self._transport is not None:
            self._transport.write(wire.pack(kind, 0, text.encode()))


def _settle(future: asyncio.Future[wire.Rows], outcome: wire.Rows | ApiError) -> None:
    if future.done():
        return  # whoever asked has gone
    if isinstance(outcome, ApiError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _error(frame: wire.Frame) -> ApiError:
    message = bytes(frame.payload).decode()
    if frame.kind == wire.BUSY:
        return busy(message)
    return not_tokenized(message) if frame.kind == wire.REFUSED else failed(f"inference failed: {message}")


def _gone() -> ApiError:
    return failed("the process with the model has ended; send the request again to another server, or later")
