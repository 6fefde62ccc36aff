# SPDX-License-Identifier: Apache-2.0
"""One process of the generator: sends requests on a schedule, and notes what comes back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from .client import Array, Client, Outcome, Target
from .traffic import Request, arrivals

IDLE_S = 0.1
"""The longest wait for answers while no request is due."""


@dataclass(frozen=True)
class Order:
    """What a worker does next.

    Attributes:
        begin: time.perf_counter at which the arrivals start; all processes share this clock.
        rate: requests per second.
        seconds: how long requests are sent.
        drain_s: how long to wait for answers after that.
        seed: the seed of the arrivals, different for every worker.
    """

    begin: float
    rate: float
    seconds: float
    drain_s: float
    seed: int


@dataclass(frozen=True)
class Notes:
    """What became of the requests, one entry each.

    Attributes:
        meant, sent, answered: seconds from the start; NaN for what never happened.
        outcome: values of Outcome.
        request: indices in the pool.
    """

    meant: Array
    sent: Array
    answered: Array
    outcome: Array
    request: Array

    @staticmethod
    def join(parts: Sequence[Notes]) -> Notes:
        """The notes of several workers."""
        return Notes(*(np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(Notes)))


def perform(client: Client, order: Order, pool_size: int) -> Notes:
    """Sends the requests of an order and waits for their answers."""
    rng = np.random.default_rng(order.seed)
    meant = arrivals(order.rate, order.seconds, rng)
    request = rng.integers(0, pool_size, meant.size)
    sent, answered = np.full(meant.size, np.nan), np.full(meant.size, np.nan)
    outcome = np.full(meant.size, int(Outcome.LOST), dtype=np.int8)
    due = [*(order.begin + meant).tolist(), order.begin + order.seconds + order.drain_s]
    at = open_requests = 0
    while at < meant.size or open_requests:
        now = time.perf_counter()
        if now >= due[-1]:
            break
        while at < meant.size and due[at] <= now and client.can_send():
            client.send(at, request[at])
            sent[at] = now - order.begin
            at, open_requests = at + 1, open_requests + 1
            now = time.perf_counter()
        wait = due[at] - now if client.can_send() else IDLE_S
        for ticket, when, what in client.wait(min(wait, IDLE_S)):
            answered[ticket], outcome[ticket] = when - order.begin, what
            open_requests -= 1
    return Notes(meant, sent, answered, outcome, request)


def work(pipe: Connection, target: Target, pool: Sequence[Request], expected: Sequence[Array] | None) -> None:
    """The process's main function: performs orders until None comes. If one fails, the error is sent, not notes."""
    try:
        client = connect(target, pool, expected)
        pipe.send(None)
        while (order := pipe.recv()) is not None:
            notes: Any = perform(client, order, len(pool))
            if (notes.outcome == Outcome.LOST).any():  # late answers must not match the next order's tickets
                client.close()
                client = connect(target, pool, expected)
            pipe.send(notes)
        client.close()
    except Exception as error:  # whatever it is, the parent reports it
        pipe.send(error)


def connect(target: Target, pool: Sequence[Request], expected: Sequence[Array] | None) -> Client:
    """Opens the connections. Only the module for the protocol is imported, as gRPC's takes a second."""
    if target.protocol == "grpc":
        from .grpc_client import GrpcClient

        return GrpcClient(target, pool, expected)
    if target.protocol == "openai":
        from .openai_client import OpenAIClient

        return OpenAIClient(target, pool, expected)
    from .http_client import HttpClient

    return HttpClient(target, pool, expected)
