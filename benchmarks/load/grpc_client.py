# SPDX-License-Identifier: Apache-2.0
"""gRPC connections of one worker, through tritonclient; answers arrive in gRPC's threads."""

from __future__ import annotations

import functools
import queue
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from .client import Answer, Array, Outcome, Target, infer_inputs, judge_request
from .traffic import Request

IN_FLIGHT = 256
"""The most requests that wait for answers on each connection."""


class GrpcClient:
    """Spreads requests over connections in turn.

    Args:
        target: the model and output that requests ask for.
        pool: the requests that `send` refers to.
        expected: the answers, or None to accept every answer.
    """

    def __init__(self, target: Target, pool: Sequence[Request], expected: Sequence[Array] | None) -> None:
        self._target = target
        self._inputs = [infer_inputs(request, triton.InferInput) for request in pool]
        self._outputs = [triton.InferRequestedOutput(target.output)]
        self._expected = expected
        own = [("grpc.use_local_subchannel_pool", 1)]  # otherwise channels to one address share a connection
        self._clients = [
            triton.InferenceServerClient(target.address, channel_args=own) for _ in range(target.connections)
        ]
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._under_way = 0

    def can_send(self) -> bool:
        """Whether a connection is free."""
        return self._under_way < IN_FLIGHT * len(self._clients)

    def send(self, ticket: int, request: int) -> None:
        """Sends a request of the pool."""
        self._under_way += 1
        self._clients[ticket % len(self._clients)].async_infer(
            self._target.model,
            self._inputs[request],
            functools.partial(self._on_answer, ticket, request),
            outputs=self._outputs,
        )

    def _on_answer(self, ticket: int, request: int, result: Any, error: Any) -> None:
        at = time.perf_counter()
        outcome = Outcome.REFUSED
        if error is None:
            answer = result.as_numpy(self._target.output)
            outcome = judge_request(answer.reshape(len(answer), -1).astype(np.float32), self._expected, request)
        self._answers.put(Answer(ticket, at, outcome))

    def wait(self, seconds: float) -> Sequence[Answer]:
        """The answers that have come; it waits up to `seconds` for the first."""
        answered = []
        try:
            answered.append(self._answers.get(timeout=max(seconds, 0.0)))
            while True:
                answered.append(self._answers.get_nowait())
        except queue.Empty:
            pass
        self._under_way -= len(answered)
        return answered

    def close(self) -> None:
        """Ends the connections."""
        for client in self._clients:
            client.close()
