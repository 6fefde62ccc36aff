# SPDX-License-Identifier: Apache-2.0
"""Batcher: single requests of many threads and coroutines, run together."""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy.typing as npt
from padfree.contract.closing import Closing
from padfree.runtime.errors import SessionError
from padfree.runtime.request import RaggedBatch, read_packed, read_request

from ..budget import Budget
from .errors import BatchingError, ClosedError
from .groups import beginning_of, parts_of
from .pace import Pace
from .parts import Whole
from .policy import Policy, latest_start_s
from .queue import RequestQueue
from .response_cache import Answer, ResponseCache
from .serving import Model, Request, Server, do_nothing, too_late
from .threads import Threads
from .waiting import Beginning, Waiting


@dataclass(frozen=True)
class Stats:
    """What a batcher has done so far.

    Attributes:
        waiting: requests in the queue now.
        answered: requests with an answer, those from the cache included.
        failed: requests that ended with an error after they were taken, `too_late` included.
        too_late: requests dropped because of their deadline.
        refused: requests that were not taken: deadline, full queue, closed.
        cancelled: requests whose future was cancelled before they ran.
        runs: runs of the model that came back.
        tokens: tokens in them, as `Waiting.length` counts them.
        cache_hits: answers that took no run.
        cache_bytes: what the cache holds.
    """

    waiting: int
    answered: int
    failed: int
    too_late: int
    refused: int
    cancelled: int
    runs: int
    tokens: int
    cache_hits: int
    cache_bytes: int


class Batcher(Closing):
    """Collects single requests into runs of a session.

    Requests wait in a bounded queue. Threads of the batcher ask the policy for the next run and hand each request its
    answer. A run that fails is repeated in halves, so that only the requests that cannot be run fail.

    Args:
        model: a Session, or anything with its `metadata` and `run`.
        policy: which requests run together and when; `FirstCome(session.budget)` packs in the order of arrival.
        runs: runs under way at once; the Session's `contexts`.
        max_waiting: most requests in the queue.
        max_waiting_tokens: most tokens in the queue; None is no limit.
        cache_bytes: memory for answers by token ids; 0 keeps none. With it, answers are arrays that cannot be written.
        tokens_a_second: the model's rate, measured beforehand; the observed rate replaces it. Requests that could not
            be answered before their deadlines at this rate are refused.

    Raises:
        SessionError: a number that means nothing.
    """

    def __init__(
        self,
        model: Model,
        policy: Policy,
        *,
        runs: int = 2,
        max_waiting: int = 1024,
        max_waiting_tokens: int | None = None,
        cache_bytes: int = 0,
        tokens_a_second: float | None = None,
    ) -> None:
        for name, value, least in (
            ("runs", runs, 1),
            ("max_waiting", max_waiting, 1),
            ("max_waiting_tokens", max_waiting_tokens, 1),
            ("cache_bytes", cache_bytes, 0),
        ):
            if value is not None and value < least:
                raise SessionError(f"{name} is {value}, allowed: {least} or more; leave it out for the default")
        pace = Pace(tokens_a_second)
        queue = RequestQueue[Request](policy, max_requests=max_waiting, max_tokens=max_waiting_tokens, pace=pace)
        self._metadata = model.metadata
        self._policy = policy
        self._server = Server(model, queue, ResponseCache(cache_bytes) if cache_bytes else None, pace)
        self._threads = Threads(self._server, runs)
        weakref.finalize(self, self._threads.let_end).atexit = False  # threads see to that themselves

    def submit(
        self,
        sequence: Mapping[str, Any] | Sequence[int] | npt.NDArray[Any],
        *,
        deadline_s: float | None = None,
        caller: Hashable = None,
        client: Hashable = None,
    ) -> Future[Answer]:
        """Queues one sequence.

        Args:
            sequence: its ids, or {"input_ids": ids, "token_type_ids": types}; integers, arrays or lists.
            deadline_s: the answer is wanted within so many seconds; a request for which it is too late is not run.
            caller: answers to one caller come in the order of its requests; without one, each as soon as it is ready.
            client: whose share of the queue the request counts to, with the policy FairShare.

        Returns:
            A future with output name -> [L, ...] or [...], as Session.run gives it for one sequence. Cancelling it
            takes the request out of the queue; one that runs already is not stopped.

        Raises:
            SessionError: the sequence does not fit the model.
            DeadlineError: not even a run at once would meet the deadline.
            QueueFullError: too much waits already.
            ClosedError: the batcher is closed, or the process is a fork of the one that it was made in.
        """
        self._threads.check_process()
        if type(sequence) is not list and isinstance(sequence, Mapping):
            ragged = read_request({name: [row] for name, row in sequence.items()}, self._metadata)
        else:
            ragged = read_request([sequence], self._metadata)
        (request,) = self._requests([ragged], deadline_s, caller, client, 1)
        cache = self._server.cache
        cached = None if cache is None else cache.get(request.key)
        if cached is None:
            self._put([request])
        else:
            request.set_running_or_notify_cancel()
            self._server.count(cache_hits=1, answered=1)
            self._server.answer(request, cached)
        return request

    def submit_group(
        self,
        sequences: Mapping[str, Any] | Sequence[Any] | npt.NDArray[Any],
        *,
        seq_lens: Any = None,
        deadline_s: float | None = None,
        caller: Hashable = None,
        client: Hashable = None,
        shares: int = 1,
        part: Budget | None = None,
    ) -> Future[dict[str, list[npt.NDArray[Any]]]]:
        """Queues sequences that come together and run together: one entry in the queue, one future.

        A group costs the host less than its sequences one by one. It is counted as one request, may be more than one
        run takes (it then takes several), and its answer is not cached. With `part` it is cut into requests of at most
        so much, which are queued all or none, and of which other runs may come in between; one that fails, or the
        future's cancel(), takes those that do not run yet out of the queue.

        Args:
            sequences: as Session.run takes them, one or more; with `seq_lens` all tokens one after the other, as
                Session.run_packed takes them, which costs the host less.
            seq_lens: integers [B], the tokens of each sequence.
            deadline_s: as for submit.
            caller: as for submit.
            client: as for submit.
            shares: how many clients' small requests the group consists of.
            part: the most that is queued as one request; None: all. What all sequences begin with counts once in it,
                where the model shares that.

        Returns:
            A future with what Session.run returns for them.

        Raises:
            SessionError: there are none, one does not fit the model, or the policy takes no groups (CheapestCut).
            BatchingError: as submit.
        """
        if not getattr(self._policy, "takes_groups", False):
            raise SessionError(
                f"the policy {type(self._policy).__name__} chooses among single sequences; submit these one by one, or "
                "batch with FirstCome"
            )
        columns = sequences if isinstance(sequences, Mapping) else {self._metadata.ids_input().name: sequences}
        self._threads.check_process()
        if seq_lens is None:
            ragged = read_request(columns, self._metadata)
        else:
            ragged = read_packed(columns, seq_lens, self._metadata)
        if not ragged.seq_lens.size:
            raise SessionError("the group has no sequences, allowed: one or more; send what there is to run")
        beginning = beginning_of(ragged, self._metadata)
        parts = [ragged] if part is None else parts_of(ragged, part, beginning)
        requests = self._requests(parts, deadline_s, caller, client, shares, group=True, beginning=beginning)
        self._put(requests)
        return requests[0] if len(requests) == 1 else Whole(requests)

    def _requests(
        self,
        parts: Sequence[RaggedBatch],
        deadline_s: float | None,
        caller: Hashable,
        client: Hashable,
        shares: int,
        *,
        group: bool = False,
        beginning: Beginning | None = None,
    ) -> list[Request]:
        """Requests that have their tickets in the caller's line."""
        if deadline_s is not None and not deadline_s > 0:
            raise SessionError(f"deadline_s is {deadline_s}, allowed: above 0; pass seconds, or leave it out for none")
        now_s = time.monotonic()
        until_s = math.inf if deadline_s is None else now_s + deadline_s
        requests = []
        for ragged in parts:
            lengths = ragged.seq_lens.tolist()
            shared = 0 if beginning is None else (len(lengths) - 1) * beginning.length
            waiting = Waiting(
                sum(lengths) - shared, now_s, until_s, len(lengths), max(lengths), client, shares, beginning=beginning
            )
            requests.append(Request(ragged, waiting, self._server.order.join(caller), group, self._server))
        return requests

    def _put(self, requests: Sequence[Request]) -> None:
        """Queues all of them, unless it is too late for one, or too much waits."""
        server = self._server
        try:
            for request in requests:
                waiting = request.waiting
                if waiting.deadline_s != math.inf and latest_start_s(waiting, self._policy.costs) < waiting.arrived_s:
                    raise too_late(waiting)
            server.queue.put(*requests)
        except BaseException as error:  # a policy's costs may raise anything
            server.count(refused=isinstance(error, BatchingError))
            for request in requests:
                server.order.finish(request.ticket, do_nothing)
            raise

    async def infer(
        self,
        sequence: Mapping[str, Any] | Sequence[int] | npt.NDArray[Any],
        *,
        deadline_s: float | None = None,
        caller: Hashable = None,
        client: Hashable = None,
    ) -> Answer:
        """`submit` for coroutines: cancelling the task cancels the request."""
        return await asyncio.wrap_future(self.submit(sequence, deadline_s=deadline_s, caller=caller, client=client))

    @property
    def waiting(self) -> int:
        """Requests in the queue now."""
        return len(self._server.queue)

    @property
    def waiting_tokens(self) -> int:
        """Tokens in the queue now."""
        return self._server.queue.tokens

    @property
    def tokens_a_second(self) -> float | None:
        """What the model computes while requests wait for it; None where that has not been seen yet."""
        return self._server.pace.tokens_a_second()

    @property
    def stats(self) -> Stats:
        """Counters, for metrics."""
        counts, cache = self._server.counts, self._server.cache
        names = ("answered", "failed", "too_late", "refused", "cancelled", "runs", "tokens", "cache_hits")
        return Stats(
            waiting=self.waiting,
            cache_bytes=0 if cache is None else cache.bytes_held,
            **{name: counts[name] for name in names},
        )

    def close(self, *, drain: bool = True) -> None:
        """Takes no more requests and waits for the threads; harmless when called again, and in a fork of the process.

        Args:
            drain: answer what waits; otherwise it fails with a ClosedError. Runs under way end in either case.
        """
        self._threads.end(
            None if drain else ClosedError("the batcher was closed before the request ran; send it again")
        )

    async def __aenter__(self) -> Batcher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)
