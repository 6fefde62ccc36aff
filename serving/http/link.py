# SPDX-License-Identifier: Apache-2.0
"""The front-end's end of the socket to the process with the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import cast

import numpy as np
from padfree.runtime import Array, Budget

from .. import wire
from ..errors import DOWN, UNHEALTHY, ApiError, backend_error, busy_error, tokenizer_error

CONNECTIONS = 1 << 62
"""Clients from here on are connections, of which every front-end has its own numbers; those below are API keys."""
NUMBERS = 1 << 40
SILENT_S = 3.0
"""The process with the model is silent if it has not pinged for this long; requests then fail at once."""
SLACK_S = 0.5
"""The process with the model drops late requests itself; if it has not after this time, it counts as hung."""


class Link(asyncio.Protocol):
    """Sends requests as tokens, and hands every answer to its caller.

    Args:
        at: the number of the front-end.
        group: the most that small requests of one moment make together.
        on_drain: is called when the server ends, and the front-end is to finish what it has.
        on_end: is called when the process with the model is gone.
        token_rows: answers have a row per token, not one per sequence.
    """

    def __init__(
        self,
        at: int,
        group: Budget,
        on_drain: Callable[[], None],
        on_end: Callable[[], None],
        *,
        token_rows: bool = False,
    ) -> None:
        self._budget, self._token_rows = group, token_rows
        self._on_drain, self._on_end = on_drain, on_end
        self._clients = count(CONNECTIONS + at * NUMBERS)
        self._frames = wire.Frames()
        self._tickets = count()
        self._unsent: list[_Group] = []
        self._waiting: dict[int, list[_Group]] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._last_ping_s = time.monotonic()
        self.is_leaving = False  # the server ends soon, and takes requests until then

    @property
    def is_silent(self) -> bool:
        """The process with the model is there and does nothing."""
        return time.monotonic() - self._last_ping_s > SILENT_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of this class

    def connection_lost(self, _error: Exception | None) -> None:
        """Nobody answers any more."""
        self._transport = None
        groups = [*self._unsent, *(group for sent_groups in self._waiting.values() for group in sent_groups)]
        self._unsent.clear()
        self._waiting.clear()
        for group in groups:
            group.settle(_lost_engine())
        self._on_end()

    def data_received(self, data: bytes) -> None:
        """Hands out answers."""
        for frame in self._frames.feed(data):
            if frame.kind in (wire.DRAIN, wire.LEAVE):
                self.is_leaving = True
                if frame.kind == wire.DRAIN:
                    self._on_drain()
                continue
            if frame.kind == wire.PING:
                self._last_ping_s = time.monotonic()
                self._tell(wire.PONG)
                continue
            groups = self._waiting.pop(frame.ticket, [])
            if frame.kind == wire.ROWS:
                self._hand_out(wire.unpack_rows(frame.payload), groups)
            elif len(groups) > 1 and frame.kind != wire.BUSY:
                for group in groups:  # one of them is at fault, and must not fail the others
                    self._send([group])
            else:
                for group in groups:
                    group.settle(_error(frame))

    def _hand_out(self, rows: wire.Rows, groups: Sequence[_Group]) -> None:
        """Gives every group its own rows."""
        start = 0
        for group in groups:
            stop = start + int(group.seq_lens.sum() if self._token_rows else group.seq_lens.size)
            group.settle(wire.Rows(rows.values[start:stop], rows.queue_s, rows.run_s))
            start = stop

    def give_up(self) -> None:
        """Fails groups that have waited for too long; called now and then."""
        latest = time.perf_counter() - SLACK_S
        late = [ticket for ticket, groups in self._waiting.items() if max(one.until for one in groups) < latest]
        for ticket in late:
            groups = self._waiting.pop(ticket)
            self._cancel(ticket)
            for group in groups:
                group.settle(busy_error("the model did not answer in time; try again later"))

    def new_client(self) -> int:
        """The number of a new client, which shares the model with all others: a connection, or this process itself."""
        return next(self._clients)

    def infer(self, seq_lens: Array, columns: Sequence[Array], until: float, client: int) -> asyncio.Future[wire.Rows]:
        """Asks for a request's rows until a time of time.perf_counter(); the future fails with an ApiError.

        Small requests of one moment travel, and run, as one: the process with the model has as much work with a group
        as with dozens of its sequences. Cancelling the future takes a request back, and a group when all of it is.
        """
        group = _Group(seq_lens, columns, until, client, self._loop.create_future())
        group.future.add_done_callback(lambda done: self._leave(group) if done.cancelled() else None)
        if self._transport is None or self.is_silent:
            group.settle(_lost_engine() if self._transport is None else _silent())
            return group.future
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(group)
        return group.future

    def _flush(self) -> None:
        groups, self._unsent = [group for group in self._unsent if not group.future.done()], []
        groups.sort(key=lambda group: min(group.client, CONNECTIONS))  # those of a key stay by themselves
        start = sequences = tokens = longest = 0
        for at, group in enumerate(groups):
            more, most = int(group.seq_lens.sum()), max(longest, int(group.seq_lens.max()))
            fits = self._budget.takes(sequences + group.seq_lens.size, tokens + more, most)
            if at > start and not (fits and group.goes_with(groups[start])):
                self._send(groups[start:at])
                start = at
                sequences = tokens = longest = 0
            sequences, tokens = sequences + group.seq_lens.size, tokens + more
            longest = max(longest, int(group.seq_lens.max()))
        if groups:
            self._send(groups[start:])

    def _leave(self, group: _Group) -> None:
        """Nobody waits for it any more."""
        sent_groups = self._waiting.get(group.ticket, ())
        if sent_groups and all(one.future.done() for one in sent_groups):
            del self._waiting[group.ticket]
            self._cancel(group.ticket)

    def _cancel(self, ticket: int) -> None:
        if self._transport is not None:
            self._transport.write(wire.pack(wire.CANCEL, ticket))

    def _send(self, groups: list[_Group]) -> None:
        if self._transport is None:
            for group in groups:
                group.settle(_lost_engine())
            return
        ticket = next(self._tickets)
        self._waiting[ticket] = groups
        for group in groups:
            group.ticket = ticket
        seq_lens, columns = groups[0].seq_lens, groups[0].columns
        if len(groups) > 1:
            seq_lens = np.concatenate([group.seq_lens for group in groups])
            columns = [np.concatenate(parts) for parts in zip(*(group.columns for group in groups), strict=True)]
        seconds = max(group.until for group in groups) - time.perf_counter()
        clients = {group.client for group in groups}
        client = groups[0].client if len(clients) == 1 else 0
        self._transport.write(wire.pack_infer(ticket, wire.Infer(seq_lens, columns, seconds, client, len(clients))))

    def log(self, line: str) -> None:
        """Gives a line to the process that writes the log."""
        self._tell(wire.LOG, line)

    def ready(self) -> None:
        """Says that requests are taken."""
        self._tell(wire.READY)

    def _tell(self, kind: int, text: str = "") -> None:
        if self._transport is not None:
            self._transport.write(wire.pack(kind, 0, text.encode()))


@dataclass(eq=False)
class _Group:
    """Sequences that wait for their rows; `ticket` is that of the frame that they went with, -1 before."""

    seq_lens: Array
    columns: Sequence[Array]
    until: float
    client: int
    future: asyncio.Future[wire.Rows]
    ticket: int = -1

    def goes_with(self, other: _Group) -> bool:
        """Whether the two may become one: they are of connections, which then have a share each, or of one key."""
        return self.client == other.client or min(self.client, other.client) >= CONNECTIONS

    def settle(self, outcome: wire.Rows | ApiError) -> None:
        if self.future.done():
            return  # whoever asked has gone
        if isinstance(outcome, ApiError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


def _error(frame: wire.Frame) -> ApiError:
    if frame.kind == wire.BUSY:
        return busy_error(*wire.unpack_busy(frame.payload))
    message = bytes(frame.payload).decode()
    return tokenizer_error(message) if frame.kind == wire.REFUSED else backend_error(f"inference failed: {message}")


def _silent() -> ApiError:
    message = f"the process with the model has not answered for {SILENT_S:.0f} s; try again later"
    return ApiError(DOWN, UNHEALTHY, message, "backend")


def _lost_engine() -> ApiError:
    message = "the process with the model has ended; send the request again to another server, or later"
    return ApiError(DOWN, UNHEALTHY, message, "backend")
