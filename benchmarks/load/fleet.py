# SPDX-License-Identifier: Apache-2.0
"""All processes of the generator, and the results of a step of offered load."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np

from .client import Array, Outcome, Target
from .traffic import Request
from .worker import Notes, Order, work

HEAD_START_S = 0.05
"""From an order to the first arrival, so that all workers are ready."""


class Fleet:
    """Worker processes that share the offered load.

    Args:
        target: the model and output that requests ask for.
        requests: the different requests, drawn from at random.
        workers: how many processes.
        expected: the right answers; None accepts every answer.
    """

    def __init__(
        self, target: Target, requests: Sequence[Request], *, workers: int, expected: Sequence[Array] | None
    ) -> None:
        self.requests = requests
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._orders = 0
        context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, target, requests, expected), daemon=True)
            process.start()
            theirs.close()  # otherwise ours would stay open when the process ends
            self._pipes.append(ours)
            self._processes.append(process)
        self._gather()

    def step(self, rate: float, seconds: float, *, warm_up_s: float = 1.0, drain_s: float = 10.0) -> dict[str, Any]:
        """Offers `rate` requests per second for `seconds` after the warm-up, and returns the results.

        Raises:
            RuntimeError: a worker was killed. Errors that a worker raises are raised here.
        """
        begin = time.perf_counter() + HEAD_START_S
        total_s = warm_up_s + seconds
        for pipe in self._pipes:
            self._orders += 1
            self._send(pipe, Order(begin, rate / len(self._pipes), total_s, drain_s, self._orders))
        notes = Notes.join(self._gather())
        return {"offered_per_s": round(rate, 1), **summary(notes, self.requests, (warm_up_s, total_s))}

    def _gather(self) -> list[Any]:
        answers = [self._receive(pipe, process) for pipe, process in zip(self._pipes, self._processes, strict=True)]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    @staticmethod
    def _send(pipe: Connection, order: Order | None) -> None:
        with contextlib.suppress(ConnectionError):  # the worker has ended; _receive says so
            pipe.send(order)

    @staticmethod
    def _receive(pipe: Connection, process: Any) -> Any:
        try:
            return pipe.recv()
        except (EOFError, ConnectionError):
            process.join()
            raise RuntimeError(
                f"a worker of the load generator has ended, with status {process.exitcode} (-9: killed); what it had "
                "sent is not counted; look into the system's log, and run the step again"
            ) from None

    def close(self) -> None:
        """Ends the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            self._send(pipe, None)
            process.join(timeout=10)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def summary(notes: Notes, pool: Sequence[Request], window: tuple[float, float]) -> dict[str, Any]:
    """Rates and latencies of a step.

    Latencies are those of requests meant to leave in the window, rates those of answers that came in it; outcomes are
    counted over the whole step. A request without an answer counts as one that took forever: percentiles can be None.
    """
    start, stop = window
    texts, tokens = (np.array([value(request) for request in pool]) for value in (_texts, _tokens))
    right = notes.outcome == Outcome.RIGHT
    came = right & (notes.answered >= start) & (notes.answered < stop)
    meant = (notes.meant >= start) & (notes.meant < stop)
    latency_ms = np.where(right, 1e3 * (notes.answered - notes.meant), np.inf)[meant]
    late_ms = np.where(np.isnan(notes.sent), np.inf, 1e3 * (notes.sent - notes.meant))[meant]
    counts = {outcome.name.lower(): int((notes.outcome == outcome).sum()) for outcome in Outcome}
    return {
        "requests": int(notes.meant.size),
        **counts,
        "meant_per_s": round(float(meant.sum()) / (stop - start), 1),
        "answered_per_s": round(float(came.sum()) / (stop - start), 1),
        "texts_per_s": round(float(texts[notes.request[came]].sum()) / (stop - start), 1),
        "tokens_per_s": round(float(tokens[notes.request[came]].sum()) / (stop - start)),
        "latency_ms": percentiles(latency_ms),
        "late_p99_ms": percentiles(late_ms)["p99"],
    }


def percentiles(values: Array) -> Mapping[str, float | None]:
    """Percentiles 50, 90, ... of the values; None where they are infinite, or there are no values."""
    shares = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}
    if not values.size:
        return dict.fromkeys(shares)
    results = {name: float(np.percentile(values, share, method="higher")) for name, share in shares.items()}
    return {name: round(value, 3) if np.isfinite(value) else None for name, value in results.items()}


def _texts(request: Request) -> int:
    return len(request.seq_lens)


def _tokens(request: Request) -> int:
    return request.tokens
