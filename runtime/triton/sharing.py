# SPDX-License-Identifier: Apache-2.0
"""Requests wait here instead of in the server's queue, so that clients share the model (FairShare).

The server's own queue is first come, first served: whoever puts a thousand requests there holds everybody up. With
`padfree_fair_share`, a call takes what the server has and returns; a Batcher runs it, and every request is answered
separately, as soon as it is ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

import numpy as np
from padfree.contract.metadata import InputInfo, Metadata

from ..batching import MOST_GROUPS, Batcher, FairShare, QueueFullError, group_budget
from ..batching.speed import Speed, measure, run_budget, with_own_first_tokens
from ..budget import Budget
from ..errors import SessionError
from ..request import OutputRows, RaggedBatch, read_packed
from ..rows import TokenArray
from ..sequence_values import sample_values
from ..session import Session
from .answers import CANCELLED, Failure, OnRun, Reply, TritonRequest, attempt, never
from .items import Item, read_item, stack

RUNS = 2
"""Runs under way at once: one is prepared, and another's answers are sent, while the model runs."""
SAMPLE_TOKENS = 64
ASK_AFTER_S = 0.05
"""Seconds after which the server is asked whether a waiting request still has a caller."""
ASK_FRACTION = 0.2
"""The largest fraction of a thread's time for asking, as each question is a round trip to the server's process."""


class Caller:
    """The caller of one request, who waits for its answer.

    Args:
        client: whose share of the model the request uses; all callers with None share one.
        send: gives the answer to the server.
        is_cancelled: asks whether nobody waits any more; a round trip to the server's process.
    """

    def __init__(
        self, client: Hashable, send: Callable[[Reply], None], is_cancelled: Callable[[], bool] = never
    ) -> None:
        self.client = client
        self._send, self._is_cancelled = send, is_cancelled
        self._lock = threading.Lock()
        self._has_answered = False

    def send(self, answer: Reply) -> None:
        """Answers the request, which is over then."""
        with self._lock:
            self._has_answered = True
            self._send(answer)

    def has_gone(self) -> bool:
        """Whether nobody waits any more. Never asks about an answered request: the server would read freed memory."""
        with self._lock:
            return not self._has_answered and self._is_cancelled()


class Sharing:
    """Answers requests one by one, from a queue that clients share.

    Args:
        session: runs the model; RUNS runs at once.
        budget: the most that a run takes; runs take less if this would make short requests wait too long.
        max_waiting_tokens: the most tokens that wait; more are refused.
        on_run: is called with every batch that has run.
        on_answer: is called with every answer, and with the seconds that it took.
    """

    def __init__(
        self,
        session: Session,
        budget: Budget,
        max_waiting_tokens: int,
        on_run: OnRun,
        on_answer: Callable[[Reply, float], None],
    ) -> None:
        self._metadata = session.metadata
        self._on_answer = on_answer
        self._outputs = {item.name: item for item in self._metadata.outputs}
        speed = measure_alike(session, budget)
        run = run_budget(budget, speed)
        self._part = group_budget(run)  # other clients' requests come in between
        self._batcher = Batcher(
            _SharedSession(session, on_run),
            FairShare(run),
            runs=RUNS,
            max_waiting=MOST_GROUPS,
            max_waiting_tokens=max_waiting_tokens,
            tokens_a_second=speed.tokens_a_second,
        )
        self._waiting: dict[Future[Any], tuple[Caller, float]] = {}  # with the time.monotonic() of its arrival
        self._ended = threading.Event()
        self._asking = threading.Thread(target=self._ask, name="padfree-cancelled", daemon=True)
        self._asking.start()

    def submit(self, request: TritonRequest, caller: Caller) -> None:
        """Queues a request; `caller.send` gets its answer at once, or later from another thread."""
        arrival_s = time.monotonic()
        item = attempt(read_item, request.tensors, self._metadata)
        ticket = item if isinstance(item, Failure) else self._queue(item, caller.client)
        if isinstance(ticket, Failure):
            self._send(ticket, caller, arrival_s)
            return
        assert isinstance(item, Item)
        self._waiting[ticket] = caller, arrival_s
        ticket.add_done_callback(partial(self._finish, request.output_names, item))

    def close(self) -> None:
        """Answers what waits, and ends the threads."""
        self._batcher.close()
        self._ended.set()
        self._asking.join()

    def _queue(self, item: Item, client: Hashable) -> Future[Any] | Failure:
        # Copies: the server takes the memory of a request back when its call ends.
        columns = {name: np.array(values) for name, values in (*item.tokens.items(), *item.of_sequences.items())}
        try:
            return self._batcher.submit_group(columns, seq_lens=item.seq_lens, client=client, part=self._part)
        except QueueFullError as error:
            return Failure(str(error), is_refusal=False, busy=True)
        except SessionError as error:
            return Failure(str(error), is_refusal=True)

    def _finish(self, output_names: Any, item: Item, done: Future[Any]) -> None:
        caller, arrival_s = self._waiting.pop(done)
        try:
            rows = done.result()
            answer: Reply = {name: stack(rows[name], item, self._outputs[name]) for name in output_names}
        except CancelledError:
            answer = CANCELLED
        except Exception as error:  # whatever it is: a request without an answer never ends
            answer = Failure(str(error) or repr(error), is_refusal=False)
        self._send(answer, caller, arrival_s)

    def _send(self, answer: Reply, caller: Caller, arrival_s: float) -> None:
        self._on_answer(answer, time.monotonic() - arrival_s)
        caller.send(answer)

    def _ask(self) -> None:
        """Cancels waiting requests whose callers have gone, the oldest first."""
        pause = ASK_AFTER_S
        while not self._ended.wait(pause):
            begin = time.monotonic()
            old = [one for one, (_, arrival_s) in list(self._waiting.items()) if begin - arrival_s > ASK_AFTER_S]
            for one in old:
                if (entry := self._waiting.get(one)) is not None and entry[0].has_gone():
                    one.cancel()
            pause = max(ASK_AFTER_S, (time.monotonic() - begin) * (1 - ASK_FRACTION) / ASK_FRACTION)


class _SharedSession:
    """The session as a Batcher's model, which reports every batch that has run."""

    def __init__(self, session: Session, on_run: OnRun) -> None:
        self._session = session
        self._on_run = on_run

    @property
    def metadata(self) -> Metadata:
        """The model's."""
        return self._session.metadata

    def run(self, request: Mapping[str, Any]) -> OutputRows:
        """As Session.run."""
        return self._session.run(request)

    def run_ragged(self, ragged: RaggedBatch) -> OutputRows:
        """As Session.run_ragged."""
        results = self._session.run_ragged(ragged)
        self._on_run(ragged)
        return results


def measure_alike(session: Session, budget: Budget) -> Speed:
    """How fast the model is, measured on sequences of one token's repetitions: its work does not depend on values."""
    metadata = session.metadata
    size = min(SAMPLE_TOKENS, metadata.longest or SAMPLE_TOKENS, budget.max_tokens or SAMPLE_TOKENS)

    def sample(copies: int) -> RaggedBatch:
        columns = {item.name: _equal_tokens(item, copies * size) for item in metadata.token_inputs()}
        columns |= sample_values(metadata.sequence_inputs(), copies)
        return with_own_first_tokens(read_packed(columns, [size] * copies, metadata), metadata)

    return measure(session, sample, beside=RUNS)


def _equal_tokens(item: InputInfo, tokens: int) -> TokenArray:
    """What every model takes in such an input, [tokens] or [tokens, N]."""
    kind = np.float32 if item.holds_embeddings else np.int32
    return np.full((tokens, *item.trailing_shape), item.least_value, kind)
