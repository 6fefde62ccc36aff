# SPDX-License-Identifier: Apache-2.0
"""What a Batcher's threads do: take a run from the queue, run it, hand out the answers."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from padfree.contract.metadata import Metadata

from ..request import OutputRows, RaggedBatch
from .caller_order import CallerOrder, Ticket
from .errors import BatchingError, DeadlineError
from .future import LightFuture
from .pace import Pace
from .queue import RequestQueue
from .response_cache import ResponseCache
from .waiting import Waiting, computed_tokens

FAILED_ALONE = 8
"""If this many requests of a run fail alone and none succeeds, the model is at fault, and the rest is not tried.

Where one request in fifty is bad, a run begins with four bad ones now and then.
"""

_log = logging.getLogger(__name__)


class Model(Protocol):
    """What a Batcher asks of a Session."""

    @property
    def metadata(self) -> Metadata:
        """The model's inputs, outputs and limits."""

    def run(self, request: Mapping[str, Sequence[Any]]) -> OutputRows:
        """Runs a ragged batch; any number of threads may call it."""


class Request(LightFuture):
    """One sequence, or a group of them, on its way: the future of its answer.

    Args:
        ragged: its tokens, checked.
        waiting: what the policy sees.
        ticket: in the caller's line.
        group: the answer has a list of arrays for every output, one per sequence; otherwise the array of the only one.
        server: is told, once, when the request is cancelled.
    """

    def __init__(self, ragged: RaggedBatch, waiting: Waiting, ticket: Ticket, group: bool, server: Server) -> None:
        super().__init__()
        self.ragged = ragged
        self.waiting = waiting
        self.ticket = ticket
        self.group = group
        self._server = server

    @property
    def key(self) -> bytes:
        """What the cache knows the answer to a single sequence by: the values of all inputs, in the model's order.

        Values of tokens have one length, and values of the sequence a known one: no other request has the same key.
        """
        return b"".join(row.tobytes() for row in (*self.ragged.tokens.values(), *self.ragged.of_sequences.values()))

    def cancel(self) -> bool:
        """Takes the request out of the queue; False where it runs already, or has run."""
        if not super().cancel():
            return False
        server = self.__dict__.pop("_server", None)  # one of two threads that cancel it finds nothing any more
        if server is not None:
            server.leave(self)
        return True


class Server:
    """Runs what the queue hands out. It knows nothing of the Batcher, which can be collected while threads run."""

    def __init__(
        self, model: Model, queue: RequestQueue[Request], cache: ResponseCache | None, pace: Pace | None = None
    ) -> None:
        self.queue = queue
        self.pace = pace or Pace()
        self.cache = cache
        self.order = CallerOrder()
        self.counts: Counter[str] = Counter()
        self._model = model
        self._counting = threading.Lock()

    def count(self, **changes: int) -> None:
        """Adds to the counters."""
        with self._counting:
            for name, change in changes.items():  # Counter.update takes three times as long
                self.counts[name] += change

    def serve(self) -> None:
        """A thread's work, until the queue is closed and empty."""
        while True:
            try:
                run = self.queue.take()
            except BaseException as error:
                # Somebody else's policy, which may even exit: those who wait must learn of it, and later ones may have
                # more luck.
                self.abandon(self.queue.drain(), BatchingError(f"the batching policy failed: {error!r}; correct it"))
                continue
            if run is None:
                return
            self._run([request for request in run if _starts(request)])

    def expire(self) -> None:
        """Another thread's work: fails requests when it is too late for them, whatever the others do."""
        while (late := self.queue.take_late()) is not None:
            for request in late:
                self.count(too_late=1)
                self.abandon([request], too_late(request.waiting))

    def answer(self, request: Request, answer: Mapping[str, Any]) -> None:
        """Hands out an answer, which is counted already, when it is the caller's turn."""
        if request.ticket.caller is None:
            _settle(request.set_result, answer)
        else:
            self.order.finish(request.ticket, partial(_settle, request.set_result, answer))

    def leave(self, request: Request) -> None:
        """A cancelled request leaves the queue and its caller's line."""
        if self.queue.discard(request):  # otherwise a thread has it already, and says so itself
            request.set_running_or_notify_cancel()  # what concurrent.futures.wait waits for
        self.count(cancelled=1)
        self.order.finish(request.ticket, do_nothing)

    def abandon(self, waiting: list[Request], error: BatchingError) -> None:
        """Fails requests that have not started."""
        for request in waiting:
            if _starts(request):
                self._fail(request, error)

    def _run(self, run: list[Request]) -> None:
        """One run of the model; when it fails, its halves, so that a request that cannot be run fails alone."""
        parts = [run] if run else []
        failed_alone, succeeded = 0, False
        while parts:
            part = parts.pop()
            try:
                answers = self._answers(part)
            except Exception as error:
                if len(part) > 1:
                    # Every second one, not neighbours: a client that sends one bad request often sends more.
                    parts += [part[1::2], part[::2]]
                    continue
                self._fail(part[0], error)
                failed_alone += 1
                if failed_alone == FAILED_ALONE and not succeeded:
                    self._give_up(
                        parts, f"{failed_alone} requests of its run failed alone, the last one with {error!r}"
                    )
                    return
            except BaseException as error:  # SystemExit: a thread that ended here would leave others waiting
                self._give_up([part, *parts], f"the run was ended by {error!r}")
                return
            else:
                succeeded = True
                self.count(answered=len(part))
                for request, answer in zip(part, answers, strict=True):
                    self.answer(request, answer)

    def _answers(self, run: list[Request]) -> list[Mapping[str, Any]]:
        batch = RaggedBatch.join([request.ragged for request in run])
        # A Session needs not look again at what was looked at; other models have `run` alone.
        run_ragged = getattr(self._model, "run_ragged", None)
        results = self._model.run(batch.rows()) if run_ragged is None else run_ragged(batch)
        answers: list[Mapping[str, Any]] = []
        start = 0
        for request in run:
            stop = start + request.waiting.sequences
            if request.group:
                answers.append({name: rows[start:stop] for name, rows in results.items()})
            else:
                answer = {name: rows[start] for name, rows in results.items()}
                answers.append(answer if self.cache is None else self.cache.put(request.key, answer))
            start = stop
        tokens = computed_tokens([request.waiting for request in run])
        self.pace.add_run(tokens, more=len(self.queue) > 0)
        self.count(runs=1, tokens=tokens)
        return answers

    def _give_up(self, parts: list[list[Request]], reason: str) -> None:
        for request in (request for part in parts for request in part):
            self._fail(request, BatchingError(f"the model fails: {reason}; find out why, then send this request again"))

    def _fail(self, request: Request, error: Exception) -> None:
        self.count(failed=1)
        self.order.finish(request.ticket, partial(_settle, request.set_exception, error))


def _starts(request: Request) -> bool:
    """Whether the request was not cancelled; from now on it cannot be."""
    try:
        return request.set_running_or_notify_cancel()
    except RuntimeError:
        return False  # its caller has set a result: nobody waits for ours


def do_nothing() -> None:
    """What is delivered where there is no answer."""


def _settle(settle: Callable[[Any], None], outcome: Any) -> None:
    """Ends a future. Callers' callbacks run in it, and may raise what would end a thread that others wait for."""
    try:
        settle(outcome)
    except BaseException:
        _log.exception("a request's future could not be given its outcome, or a callback of it failed")


def too_late(waiting: Waiting) -> DeadlineError:
    """The error for a request that cannot be answered in time any more."""
    slack_ms = 1e3 * (waiting.deadline_s - waiting.arrived_s)
    return DeadlineError(
        f"a request of {waiting.length} tokens cannot be answered within the {slack_ms:.1f} ms that its caller allows; "
        "allow more time, send less, or add a GPU"
    )
