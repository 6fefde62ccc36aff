# SPDX-License-Identifier: Apache-2.0
"""The front-end's end of the socket to the process with the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from padfree.runtime.budget import Budget

from .. import wire
from ..errors import ApiError, busy, failed, not_tokenized

Array = npt.NDArray[Any]

GROUP = Budget(max_tokens=4096, max_sequences=32)
"""The most that goes to the model as one group: small enough to share a run with those of other front-ends."""
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
        self._unsent: list[_Group] = []
        self._waiting: dict[int, list[_Group]] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of this class

    def connection_lost(self, _error: Exception | None) -> None:
        """Nobody answers any more."""
        self._transport = None
        for group in chain(self._unsent, *self._waiting.values()):
            group.settle(_gone())
        self._unsent.clear()
        self._waiting.clear()
        self._on_end()

    def data_received(self, data: bytes) -> None:
        """Hands out answers."""
        for frame in self._frames.feed(data):
            if frame.kind == wire.DRAIN:
                self._on_drain()
                continue
            groups = self._waiting.pop(frame.ticket, [])
            if frame.kind == wire.ROWS:
                _hand_out(wire.unpack_rows(frame.payload), groups)
            elif len(groups) > 1 and frame.kind != wire.BUSY:
                for group in groups:  # one of them is at fault, and is not to take the others with it
                    self._send([group])
            else:
                for group in groups:
                    group.settle(_error(frame))

    def give_up(self) -> None:
        """Fails groups that have waited for too long; called now and then."""
        latest = time.perf_counter() - SLACK_S
        late = [ticket for ticket, groups in self._waiting.items() if max(one.until for one in groups) < latest]
        for ticket in late:
            for group in self._waiting.pop(ticket):
                group.settle(busy("the model did not answer in time; try again later"))

    def infer(self, seq_lens: Array, columns: Sequence[Array], until: float) -> asyncio.Future[wire.Rows]:
        """Asks for the rows of a group until a time of time.perf_counter(); the future fails with an ApiError.

        Small groups that are asked for at one moment travel, and run, as one: the process with the model has as much
        work with a group as with dozens of its sequences.
        """
        group = _Group(seq_lens, columns, until, self._loop.create_future())
        if self._transport is None:
            group.settle(_gone())
            return group.future
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(group)
        return group.future

    def _flush(self) -> None:
        groups, self._unsent = self._unsent, []
        start = sequences = tokens = 0
        for at, group in enumerate(groups):
            more = int(group.seq_lens.sum())
            if at > start and not GROUP.takes(sequences + group.seq_lens.size, tokens + more, 0):
                self._send(groups[start:at])
                start, sequences, tokens = at, 0, 0
            sequences, tokens = sequences + group.seq_lens.size, tokens + more
        if groups:
            self._send(groups[start:])

    def _send(self, groups: list[_Group]) -> None:
        if self._transport is None:
            for group in groups:
                group.settle(_gone())
            return
        ticket = next(self._tickets)
        self._waiting[ticket] = groups
        seq_lens, columns = groups[0].seq_lens, groups[0].columns
        if len(groups) > 1:
            seq_lens = np.concatenate([group.seq_lens for group in groups])
            columns = [np.concatenate(parts) for parts in zip(*(group.columns for group in groups), strict=True)]
        seconds = max(group.until for group in groups) - time.perf_counter()
        self._transport.write(wire.pack_infer(ticket, seq_lens, columns, seconds))

    def log(self, line: str) -> None:
        """Gives a line to the process that writes the log."""
        self._tell(wire.LOG, line)

    def ready(self) -> None:
        """Says that requests are taken."""
        self._tell(wire.READY)

    def _tell(self, kind: int, text: str = "") -> None:
        if self._transport is not None:
            self._transport.write(wire.pack(kind, 0, text.encode()))


@dataclass(frozen=True)
class _Group:
    """Sequences that wait for their rows."""

    seq_lens: Array
    columns: Sequence[Array]
    until: float
    future: asyncio.Future[wire.Rows]

    def settle(self, outcome: wire.Rows | ApiError) -> None:
        if self.future.done():
            return  # whoever asked has gone
        if isinstance(outcome, ApiError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


def _hand_out(rows: wire.Rows, groups: Sequence[_Group]) -> None:
    """Gives every group its own rows."""
    start = 0
    for group in groups:
        stop = start + group.seq_lens.size
        group.settle(wire.Rows(rows.values[start:stop], rows.queue_s, rows.run_s))
        start = stop


def _error(frame: wire.Frame) -> ApiError:
    message = bytes(frame.payload).decode()
    if frame.kind == wire.BUSY:
        return busy(message)
    return not_tokenized(message) if frame.kind == wire.REFUSED else failed(f"inference failed: {message}")


def _gone() -> ApiError:
    return failed("the process with the model has ended; send the request again to another server, or later")
