# SPDX-License-Identifier: Apache-2.0
"""The model of the batchers in tests, which hold it up, slow it down and break it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from padfree.runtime.batching import Batcher, Budget, FirstCome
from padfree.runtime.plan_files import parse_metadata

BREAKS = 66  # a run with this id fails
PATIENCE_S = 20.0  # tests that wait longer have failed


class Model:
    """Answers ids times ten; `gate` holds up runs with an id 1 in them, and `delay_s` gives the seconds of each run."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = parse_metadata(metadata, "test")
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.runs: list[list[list[int]]] = []
        self.delay_s: Callable[[], float] = lambda: 0.0

    def run(self, request: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        ids = [row.tolist() for row in request["input_ids"]]
        self.runs.append(ids)
        self.started.release()
        if any(1 in row for row in ids):
            assert self.gate.wait(PATIENCE_S)
        time.sleep(self.delay_s())
        if any(BREAKS in row for row in ids):
            raise RuntimeError("the GPU does not like it")
        packed = np.concatenate([np.asarray(row) for row in request["input_ids"]]) * 10
        ends = np.cumsum([len(row) for row in ids])
        return {"tens": np.split(packed, ends[:-1])}


def first_come(**budget: int) -> FirstCome:
    return FirstCome(Budget(**budget))


def held_up(model: Model, batcher: Batcher) -> Future[Any]:
    """Starts a run that lasts until the gate opens."""
    model.gate.clear()
    future = batcher.submit([1])
    assert model.started.acquire(timeout=PATIENCE_S)
    return future


def answer(future: Future[Any]) -> list[int]:
    tens: list[int] = future.result(PATIENCE_S)["tens"].tolist()
    return tens
