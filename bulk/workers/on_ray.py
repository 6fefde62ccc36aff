# SPDX-License-Identifier: Apache-2.0
"""Workers as actors of a Ray cluster: the same Worker, on any of its machines."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import ray

from ..errors import BulkError, IncompleteError
from ..processes import INCOMPLETE
from .base import Event, Loss, Refusal, ShardFinish
from .local import message_of
from .worker import AHEAD, FinishedShard, Worker, WorkerSpec

CONNECT_S = 5.0


class RayWorkers:
    """Actors. The cluster's machines see the inputs, the output and the model under the same paths.

    Args:
        address: of the cluster, "auto" for the one that this machine belongs to, or "local" for one of its own.
        spec: what every one of them is told.
        count: how many; 0: one for every GPU of the cluster.
        gpus: GPUs of each.

    Raises:
        BulkError: there is no cluster, or it has no GPU.
    """

    def __init__(self, address: str, spec: WorkerSpec, count: int, gpus: int) -> None:
        if not ray.is_initialized():
            _check_answers(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise _no_cluster(address, error) from error
        if not count:
            count = int(ray.cluster_resources().get("GPU", 0))
        if not count:
            raise BulkError(f"--ray {address}: the cluster has no GPU; pass --workers and a packed .onnx file")
        cores = spec.tokenizers + max(1, spec.cpu_threads)
        _check_room(address, cores, gpus)
        self._make = ray.remote(_Actor).options(
            num_gpus=gpus, num_cpus=cores, max_restarts=0, max_concurrency=AHEAD + 1, scheduling_strategy="SPREAD"
        )
        self._spec = ray.put(spec)
        self._actors: dict[int, Any] = {}
        self._starting: dict[int, Any] = {}
        self._answers: dict[Any, int] = {}
        for worker in range(count):
            self.restart(worker)

    @property
    def names(self) -> tuple[str, ...]:
        """As Workers."""
        return tuple(f"actor {number}" for number in self._actors)

    def restart(self, worker: int) -> None:
        """As Workers; Ray finds a machine that has room."""
        self._actors[worker] = self._make.remote(self._spec)
        self._starting[worker] = self._actors[worker].start.remote()

    def is_ready(self, worker: int) -> bool:
        """As Workers: whether Ray has found a machine for it. One that is lost before is started again."""
        reference = self._starting.get(worker)
        if reference is None:
            return True
        ready, _ = ray.wait([reference], timeout=0)
        if not ready:
            return False
        try:
            ray.get(reference)
        except ray.exceptions.RayError:  # its machine has gone meanwhile
            self.restart(worker)
            return False
        del self._starting[worker]
        return True

    def give(self, worker: int, shard: int) -> None:
        """As Workers."""
        self._answers[self._actors[worker].run.remote(shard)] = worker

    def wait(self, timeout_s: float) -> list[Event]:
        """As Workers."""
        if not self._answers:
            time.sleep(timeout_s)
            return []
        ready, _ = ray.wait(list(self._answers), num_returns=1, timeout=timeout_s)
        events: list[Event] = []
        for reference in ready:
            if (worker := self._answers.pop(reference, None)) is None:
                continue  # of a worker that was just found lost
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayError as error:  # the actor, or its machine, is gone
                self._answers = {other: at for other, at in self._answers.items() if at != worker}
                events.append(Loss(worker, f"is gone ({type(error).__name__})"))
                continue
            events.append(Refusal(worker, answer) if isinstance(answer, str) else ShardFinish(worker, answer))
        return events

    def close(self, *, kill: bool) -> None:
        """As Workers."""
        for actor in self._actors.values():
            if not kill:
                ray.wait([actor.close.remote()], timeout=30)
            ray.kill(actor)


def _check_room(address: str, cores: int, gpus: int) -> None:
    """Refuses actors that no machine of the cluster could ever take: Ray would wait for one without a word.

    Raises:
        BulkError: none has so many cores, or a GPU.
    """
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(one.get("CPU", 0) >= cores and one.get("GPU", 0) >= gpus for one in machines):
        return
    most = max((int(one.get("CPU", 0)) for one in machines if one.get("GPU", 0) >= gpus), default=0)
    raise BulkError(
        f"--ray {address}: an actor takes {cores} cores and {gpus} GPUs, and no machine has more than {most} cores "
        "with that; pass a smaller --tokenizers, or more --workers on machines without a GPU"
    )


def _check_answers(address: str) -> None:
    """Refuses an address of a host and a port at which nobody listens: Ray would wait for minutes.

    Raises:
        BulkError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> BulkError:
    return BulkError(
        f"--ray {address}: no cluster answers ({error}); start one with `ray start --head`, or leave --ray out"
    )


class _Actor:
    """A worker in an actor, made with the first shard; an error is returned instead of a result."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def start(self) -> None:
        """Returns as soon as the actor runs on a machine."""

    def run(self, shard: int) -> FinishedShard | str:
        """Does a shard; a text says why not."""
        try:
            with self._lock:
                if self._worker is None:
                    self._worker = Worker(self._spec)
                worker = self._worker
            return worker.submit(shard).result()
        except IncompleteError:
            os._exit(INCOMPLETE)  # the driver starts another actor
        except Exception as error:
            return message_of(error)

    def close(self) -> None:
        """Frees everything."""
        with self._lock:
            if self._worker is not None:
                self._worker.close()
