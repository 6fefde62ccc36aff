# SPDX-License-Identifier: Apache-2.0
"""What a Batcher's threads do: take a run from the queue, run it, hand out the answers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy.typing as npt
from padfree.runtime.metadata import Metadata

from .caller_order import CallerOrder, Place
from .errors import BatchingError, DeadlineError
from .policy import Waiting
from .queue import RequestQueue
from .response_cache import Answer, ResponseCache, cache_key

Array = npt.NDArray[Any]


class Model(Protocol):
    """What a Batcher asks of a Session."""

    @property
    def metadata(self) -> Metadata:
        """The model's inputs, outputs and limits."""

    def run(self, request: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Runs a ragged batch; any number of threads may call it."""


@dataclass(eq=False)
class Request:
    """One sequence on its way.

    Attributes:
        tokens: token input name -> int32 [L].
        waiting: what the policy sees.
        place: in the caller's line.
        future: where the answer goes.
    """

    tokens: Mapping[str, Array]
    waiting: Waiting
    place: Place
    future: Future[Answer] = field(default_factory=Future)


class Server:
    """Runs what the queue hands out. It knows nothing of the Batcher, which can be collected while threads run."""

    def __init__(self, model: Model, queue: RequestQueue[Request], cache: ResponseCache | None) -> None:
        self.queue = queue
        self.cache = cache
        self.order = CallerOrder()
        self.counts: Counter[str] = Counter()
        self._model = model
        self._counting = threading.Lock()

    def count(self, **changes: int) -> None:
        """Adds to the counters."""
        with self._counting:
            self.counts.update(changes)

    def serve(self) -> None:
        """A thread's work, until the queue is closed and empty."""
        while True:
            try:
                work = self.queue.take()
            except Exception as error:
                # Somebody else's policy: those who wait must learn of it, and later ones may have more luck.
                for request in self.queue.drain():
                    self._start_and_fail(request, BatchingError(f"the batching policy failed: {error!r}; correct it"))
                continue
            if work is None:
                return
            for request in work.too_late:
                self.count(too_late=1)
                self._start_and_fail(request, too_late(request.waiting))
            run = [request for request in work.run if request.future.set_running_or_notify_cancel()]
            if run:
                self._run(run)

    def answer(self, request: Request, answer: Answer) -> None:
        """Hands out an answer when it is the caller's turn."""
        self.count(answered=1)
        self.order.finish(request.place, partial(request.future.set_result, answer))

    def abandon(self, waiting: list[Request], error: BatchingError) -> None:
        """Fails requests that have not started."""
        for request in waiting:
            self._start_and_fail(request, error)

    def _run(self, run: list[Request]) -> None:
        """One run of the model; when it fails, its halves, so that a request that cannot be run fails alone."""
        names = run[0].tokens
        try:
            results = self._model.run({name: [request.tokens[name] for request in run] for name in names})
            answers = [{name: rows[at] for name, rows in results.items()} for at in range(len(run))]
        except Exception as error:
            if len(run) == 1:
                self._fail(run[0], error)
                return
            self._run(run[: len(run) // 2])
            self._run(run[len(run) // 2 :])
            return
        self.count(runs=1, tokens=sum(request.waiting.length for request in run))
        for request, answer in zip(run, answers, strict=True):
            kept = answer if self.cache is None else self.cache.put(cache_key(request.tokens), answer)
            self.answer(request, kept)

    def _start_and_fail(self, request: Request, error: Exception) -> None:
        if request.future.set_running_or_notify_cancel():
            self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        self.count(failed=1)
        self.order.finish(request.place, partial(request.future.set_exception, error))


def too_late(waiting: Waiting) -> DeadlineError:
    """The error for a request that cannot be answered in time any more."""
    slack_ms = 1e3 * (waiting.deadline_s - waiting.arrived_s)
    return DeadlineError(
        f"a request of {waiting.length} tokens cannot be answered within {slack_ms:.1f} ms, what its caller allowed; "
        "allow more, send less, or add a GPU"
    )
