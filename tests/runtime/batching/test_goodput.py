# SPDX-License-Identifier: Apache-2.0
"""Under overload, as much is answered in time as for a single client, who is never refused.

A run sleeps for as long as its tokens take at RATE, so that the figures are the queue's and not the machine's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from padfree.contract.metadata import Metadata
from padfree.runtime.batching import Batcher, BatchingError, Budget, FairShare
from padfree.runtime.plan_files import parse_metadata
from padfree.runtime.request import RaggedBatch

RATE = 20_000.0
RUN, PART = Budget(1000), Budget(500)
GROUP, LENGTH, CLIENTS = 1000, 10, 8
DEADLINE_S, SECONDS = 0.6, 2.0
GOODPUT = 0.9
ATTEMPTS = 3
"""Other work on the machine can delay answers beyond a deadline, but never makes them come sooner."""
WAITING = 2
"""Groups that the single client keeps waiting, so that the model never waits."""


class Sleeping:
    """A model that computes RATE tokens per second."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata: Metadata = parse_metadata(metadata, "model")

    def run(self, request: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        raise AssertionError(f"groups come as they are, not as {request}")

    def run_ragged(self, ragged: RaggedBatch) -> dict[str, list[Any]]:
        time.sleep(int(ragged.seq_lens.sum()) / RATE)
        return {"rows": [np.zeros(1)] * ragged.seq_lens.size}


class Load:
    """Sends groups of tokens, and counts the tokens that were answered in time."""

    def __init__(self, batcher: Batcher) -> None:
        self.in_time = 0
        self._batcher = batcher
        self._lock = threading.Lock()

    def send(
        self, client: int, on_end: threading.Semaphore | None = None, deadline_s: float | None = DEADLINE_S
    ) -> None:
        until = time.monotonic() + DEADLINE_S

        def finish(future: Future[Any]) -> None:
            if future.exception() is None and time.monotonic() < until:
                with self._lock:
                    self.in_time += GROUP
            if on_end is not None:
                on_end.release()

        lengths = [LENGTH] * (GROUP // LENGTH)
        try:
            future = self._batcher.submit_group(
                {"input_ids": np.zeros(GROUP, np.int32)},
                seq_lens=lengths,
                deadline_s=deadline_s,
                client=client,
                part=PART,
            )
        except BatchingError:
            return
        future.add_done_callback(finish)


def alone(batcher: Batcher) -> float:
    """Tokens per second for a single client, who always has another group in the queue."""
    load, room = Load(batcher), threading.Semaphore(WAITING)
    begin = time.monotonic()
    while time.monotonic() < begin + SECONDS / 2:
        room.acquire()
        load.send(0, room)
    for _ in range(WAITING):
        room.acquire()
    return load.in_time / (time.monotonic() - begin)


def goodput_at(batcher: Batcher, factor: float) -> float:
    """Tokens per second that are answered in time if `factor` times as many come as the model computes."""
    load = Load(batcher)
    begin, sent = time.monotonic(), 0
    while (now := time.monotonic()) < begin + SECONDS:
        while sent * GROUP < (now - begin) * RATE * factor:
            load.send(sent % CLIENTS)
            sent += 1
        time.sleep(0.005)
    return load.in_time / (time.monotonic() - begin)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [2, 10])
def test_goodput_under_overload_is_what_one_client_gets_alone(packed_metadata: dict[str, Any], factor: int) -> None:
    measured = []
    for _ in range(ATTEMPTS):
        with Batcher(
            Sleeping(packed_metadata), FairShare(RUN), runs=1, max_waiting=1 << 16, tokens_a_second=RATE
        ) as batcher:
            capacity = alone(batcher)
            goodput = goodput_at(batcher, factor)
        measured.append((goodput, capacity))
        if capacity > 0.5 * RATE and goodput >= GOODPUT * capacity:
            return
    pytest.fail(f"tokens per second that were answered in time, and those of one client alone: {measured}")
