# SPDX-License-Identifier: Apache-2.0
"""Workers as processes of this machine: one per GPU, or some that share the cores."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import connection
from typing import Any

from padfree.contract.child_signals import held_back

from ..errors import IncompleteError
from ..processes import DRIVING, INCOMPLETE, UNHEARD, WORKER, die_with_parent
from .base import BatchProgress, Event, Loss, Refusal, ShardFinish
from .worker import FinishedShard, Worker, WorkerSpec

END_S = 30.0
"""How long a worker may take to end in good order."""
TELL_S = 0.2
"""Seconds between two reports of batches that have run."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalWorkers:
    """Processes; each has a pipe to the driver, and ends when that is closed.

    Args:
        spec: what every one of them is told.
        names: what they are called.
        environments: variables of each.
    """

    def __init__(self, spec: WorkerSpec, names: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        self._spec, self._names, self._environments = spec, tuple(names), tuple(environments)
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Any] = {}
        for worker in range(len(names)):
            self.restart(worker)

    @property
    def names(self) -> tuple[str, ...]:
        """As Workers."""
        return self._names

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by worker."""
        return {worker: process.pid for worker, process in self._processes.items()}

    def restart(self, worker: int) -> None:
        """As Workers."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_main,
            args=(theirs, worker, self._spec, dict(self._environments[worker])),
            name=f"{WORKER}{worker}",
        )
        with held_back(UNHEARD):
            process.start()
        theirs.close()
        self._processes[worker], self._pipes[worker] = process, ours

    def is_ready(self, worker: int) -> bool:
        """As Workers; what comes before it runs waits in its pipe."""
        return worker in self._pipes

    def give(self, worker: int, shard: int) -> None:
        """As Workers; a worker that is gone is found by `wait`."""
        with suppress(OSError):
            self._pipes[worker].send(shard)

    def wait(self, timeout_s: float) -> list[Event]:
        """As Workers."""
        events: list[Event] = []
        ready = connection.wait(list(self._pipes.values()), timeout_s)
        for worker, pipe in [item for item in self._pipes.items() if item[1] in ready]:
            event = _receive(pipe)
            events.append(self._loss(worker) if event is None else event)
        return events

    def _loss(self, worker: int) -> Event:
        process = self._processes[worker]
        del self._pipes[worker]
        process.join()
        if process.exitcode == DRIVING:
            return Refusal(
                worker,
                "processes import the program that starts them, and this one starts the work again when it is "
                'imported; move what it does below: if __name__ == "__main__":',
            )
        why = " (a process that made tokens was gone)" if process.exitcode == INCOMPLETE else ""
        return Loss(worker, f"ended with code {process.exitcode}{why}")

    def close(self, *, kill: bool) -> None:
        """As Workers."""
        for worker, process in self._processes.items():
            pipe = self._pipes.get(worker)
            if kill:
                process.kill()
            elif pipe is not None:
                with suppress(OSError):
                    pipe.send(None)
        for process in self._processes.values():
            process.join(END_S)
            process.kill()
            process.join()


def _receive(pipe: Any) -> Event | None:
    """What a worker tells; None where it is gone."""
    try:
        event: Event = pipe.recv()
    except (EOFError, OSError):
        return None
    return event


def _main(pipe: Any, number: int, spec: WorkerSpec, environment: Mapping[str, str]) -> None:
    """The process."""
    os.environ.update(environment)  # before anything has asked CUDA for its devices
    die_with_parent()
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock, suppress(OSError):
            pipe.send(event)

    reporter = _Reporter(number, tell)

    def answer(future: Future[FinishedShard]) -> None:
        error = future.exception()
        if isinstance(error, IncompleteError):
            os._exit(INCOMPLETE)
        tell(ShardFinish(number, future.result()) if error is None else Refusal(number, message_of(error)))

    try:
        worker = Worker(spec, reporter.add)
    except Exception as error:
        tell(Refusal(number, message_of(error)))
        return
    with suppress(EOFError):
        while (shard := pipe.recv()) is not None:
            worker.submit(shard).add_done_callback(answer)
    worker.close()


class _Reporter:
    """Batches that have run, told together every TELL_S: a small model runs hundreds per second."""

    def __init__(self, worker: int, tell: Callable[[Event], None]) -> None:
        self._worker, self._tell = worker, tell
        self._lock = threading.Lock()
        self._rows, self._tokens = Counter[int](), Counter[int]()
        self._last = time.perf_counter()

    def add(self, shard: int, rows: int, tokens: int) -> None:
        """Another batch of a shard."""
        with self._lock:
            self._rows[shard] += rows
            self._tokens[shard] += tokens
            if time.perf_counter() - self._last < TELL_S:
                return
            for each, count in self._rows.items():
                self._tell(BatchProgress(self._worker, each, count, self._tokens[each]))
            self._rows.clear()
            self._tokens.clear()
            self._last = time.perf_counter()


def message_of(error: BaseException) -> str:
    """An error as a driver tells it: padfree's own as they are, others by their name."""
    text = str(error) or "no message"
    return text if type(error).__module__.startswith("padfree.") else f"{type(error).__name__}: {text}"


def one_a_gpu(gpus: Sequence[str]) -> tuple[list[str], list[dict[str, str]]]:
    """Names and environments of a worker for each of these GPUs, as CUDA_VISIBLE_DEVICES calls them."""
    return [f"GPU {gpu}" for gpu in gpus], [{VISIBLE: gpu} for gpu in gpus]


def on_cpu(count: int) -> tuple[list[str], list[dict[str, str]]]:
    """Names and environments of so many workers without a GPU."""
    return [f"CPU worker {number}" for number in range(count)], [{} for _ in range(count)]
