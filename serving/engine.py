# SPDX-License-Identifier: Apache-2.0
"""The process with the model: requests come from the front-ends as tokens, go through a Batcher, and rows go back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, cast

import numpy as np
from padfree.contract.metadata import Metadata
from padfree.runtime import Array, Runner, SessionError
from padfree.runtime.batching import (
    MOST_GROUPS,
    Batcher,
    Budget,
    ClosedError,
    DeadlineError,
    FairShare,
    QueueFullError,
    group_budget,
)
from padfree.runtime.pool import DevicePool
from padfree.runtime.request import OutputRows, RaggedBatch, read_request
from padfree.runtime.text import ServedModel, TextInputs, column_count, of_columns

from . import wire
from .metrics import ProcessCounters
from .options import Limits


class Engine:
    """Answers requests; every front-end has an Inbox to it.

    Args:
        session: runs the model.
        served_model: which output answers, and what becomes of it.
        limits: how many tokens may wait.
        runs: runs under way at once.
        counters: those of this process.
        budget: the most that one run takes; None: the session's.
        tokens_a_second: the rate that was measured before; None: none was.
    """

    def __init__(
        self,
        session: Runner,
        served_model: ServedModel,
        limits: Limits,
        runs: int,
        counters: ProcessCounters,
        *,
        budget: Budget | None = None,
        tokens_a_second: float | None = None,
    ) -> None:
        self._served_model = served_model
        self._counters = counters
        self._model = _Measuring(session, served_model, counters)
        budget = budget or session.budget
        self._part = group_budget(budget)
        self._batcher = Batcher(
            self._model,
            FairShare(budget),
            runs=runs,
            max_waiting=MOST_GROUPS,
            max_waiting_tokens=limits.waiting_tokens,
            tokens_a_second=tokens_a_second,
        )
        self.show_queue()

    def submit(self, request: wire.Infer) -> Future[dict[str, list[Array]]]:
        """Queues a request, all of it or nothing; returns its rows and raises errors as Batcher.submit_group."""
        if request.seconds <= 0:
            raise DeadlineError("the request has waited too long already")
        inputs = self._served_model.inputs
        names = (*inputs.token_names, *inputs.sequence_names)
        future = self._batcher.submit_group(
            {
                **dict(zip(names, request.columns, strict=False)),
                **of_columns(inputs.others, request.columns[len(names) :]),
            },
            seq_lens=request.seq_lens,
            deadline_s=request.seconds,
            client=request.client or object(),
            shares=request.shares,
            part=self._part,
        )
        self.show_queue()
        return future

    def close(self) -> None:
        """Answers what waits, and ends the threads."""
        self._batcher.close()

    def answer(self, ticket: int, arrival_s: float, done: Future[dict[str, list[Array]]]) -> bytes:
        """The frame with what became of a request."""
        self.show_queue()
        try:
            error = done.exception()
            if error is not None:
                return _error(ticket, error)
            run_s = self._model.last_s
            rows = done.result()[self._served_model.output]
            values = np.concatenate(rows) if self._served_model.has_token_rows else np.stack(rows)
            return wire.pack_rows(ticket, values, max(0.0, time.perf_counter() - arrival_s - run_s), run_s)
        except Exception as error:
            return _error(ticket, error)

    def show_queue(self) -> None:
        """Updates what front-ends look at before they accept large requests."""
        self._counters.set("te_queue_size", self._batcher.waiting)
        self._counters.set("padfree_waiting_tokens", self._batcher.waiting_tokens)
        self._counters.set("padfree_tokens_a_second", self._batcher.tokens_a_second or 0.0)


class Inbox:
    """What one front-end asks the engine for.

    Args:
        engine: answers.
        inputs: the model's.
        send: gets answers, perhaps in another thread.
    """

    def __init__(self, engine: Engine, inputs: TextInputs, send: Callable[[bytes], None]) -> None:
        self._engine, self._send = engine, send
        self._counts = len(inputs.token_names), len(inputs.sequence_names) + column_count(inputs.others)
        self._futures: dict[int, Future[Any]] = {}

    def infer(self, frame: wire.Frame) -> None:
        """Takes a request."""
        ticket, arrival_s = frame.ticket, time.perf_counter()
        try:
            future = self._engine.submit(wire.unpack_infer(frame.payload, *self._counts))
        except Exception as error:  # whatever it is: somebody waits for an answer
            self._send(_error(ticket, error, wire.REFUSED if isinstance(error, SessionError) else wire.FAILED))
            return
        self._futures[ticket] = future
        future.add_done_callback(lambda done: self._finish(ticket, arrival_s, done))

    def cancel(self, ticket: int) -> None:
        """Drops a request for which nobody waits any more, as far as it does not run yet."""
        future = self._futures.get(ticket)
        if future is not None:
            future.cancel()
            self._engine.show_queue()

    def close(self) -> None:
        """Drops all requests: the front-end is gone, and its callers with it."""
        for ticket in list(self._futures):
            self.cancel(ticket)

    def _finish(self, ticket: int, arrival_s: float, done: Future[Any]) -> None:
        self._futures.pop(ticket, None)
        if not done.cancelled():
            self._send(self._engine.answer(ticket, arrival_s, done))


def _error(ticket: int, error: BaseException, kind: int = wire.FAILED) -> bytes:
    """The frame that tells a front-end why there are no rows."""
    if isinstance(error, (QueueFullError, DeadlineError, ClosedError)):
        return wire.pack_busy(ticket, str(error), getattr(error, "retry_after_s", None))
    return wire.pack(kind, ticket, (str(error) or repr(error)).encode())


class _Measuring:
    """The session as a Batcher's model: it measures runs, and gives only the output that is asked for."""

    def __init__(self, session: Runner, served_model: ServedModel, counters: ProcessCounters) -> None:
        self._session = session
        self._output = served_model.output
        self._counters = counters
        self._lock = threading.Lock()
        self._tokens_saved = 0
        self._of_thread = threading.local()
        self._count_devices()

    @property
    def metadata(self) -> Metadata:
        """The model's."""
        return self._session.metadata

    @property
    def last_s(self) -> float:
        """How long the last run of this thread took; answers are handed out by the thread that ran them."""
        return getattr(self._of_thread, "seconds", 0.0)

    def run(self, request: Mapping[str, Sequence[Any]]) -> OutputRows:
        """As Session.run."""
        return self.run_ragged(read_request(request, self.metadata))

    def run_ragged(self, ragged: RaggedBatch) -> OutputRows:
        """As Session.run_ragged."""
        start = time.perf_counter()
        results = self._session.run_ragged(ragged)
        self._of_thread.seconds = time.perf_counter() - start
        sequences, tokens = ragged.seq_lens.size, int(ragged.seq_lens.sum())
        with self._lock:
            self._counters.observe("te_batch_next_size", [sequences])
            self._counters.observe("te_batch_next_tokens", [tokens])
            savings = getattr(self._session, "tokens_saved", 0) - self._tokens_saved
            self._tokens_saved += savings
            self._counters.add("padfree_tokens_saved_total", savings)
            self._counters.add("padfree_tokens_total", tokens - savings)
            self._count_devices()
        return {self._output: results[self._output]}

    def _count_devices(self) -> None:
        pool = self._session
        self._counters.set("padfree_devices", len(pool.devices) if isinstance(pool, DevicePool) else 1)


class Channel(asyncio.Protocol):
    """The socket to a front-end, in the loop of the model's process. Answers may be given from any thread.

    Args:
        on_frame: is given every frame.
    """

    def __init__(self, on_frame: Callable[[wire.Frame], None]) -> None:
        self._on_frame = on_frame
        self._frames = wire.Frames()
        self._answers: deque[bytes] = deque()
        self._flushing = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of this class

    def data_received(self, data: bytes) -> None:
        """Hands out the frames."""
        for frame in self._frames.feed(data):
            self._on_frame(frame)

    def connection_lost(self, _error: Exception | None) -> None:
        """The front-end is gone, and its answers with it."""
        self._transport = None

    def send(self, data: bytes) -> None:
        """Sends a frame, from any thread; the answers of one run leave together."""
        self._answers.append(data)
        if not self._flushing:
            self._flushing = True
            with suppress(RuntimeError):  # the loop has ended, and with it the front-ends
                self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        parts = []
        while self._answers:
            parts.append(self._answers.popleft())
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.close()
