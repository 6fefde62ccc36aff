# SPDX-License-Identifier: Apache-2.0
"""DevicePool: one model on several GPUs, with the `run` of a Session."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from padfree.contract.closing import Closing
from padfree.contract.metadata import Metadata
from padfree.contract.names import PREFIX, is_onnx

from ..arrays.device_arrays import any_on_device
from ..batching.costs import CostTable
from ..batching.dealing import modelled_costs
from ..batching.partition import check_alike
from ..budget import Budget
from ..errors import SessionError
from ..prefixes import computed_lengths
from ..request import OutputRows, RaggedBatch, in_order, read_packed, read_request
from ..request_checks import check_one_run
from ..session import Session
from .choice import check_devices, machine_devices
from .division import divide
from .members import DeviceStats, Members, PoolSession


class DevicePool(Closing):
    """Sessions of one model on several devices, which answer as one.

    Work is dealt by what it costs, by tokens and squared lengths, not by rows: a run goes to the device that has least
    to do, a batch of several runs is divided into runs of nearly equal cost, and a batch of one run is divided too
    where devices have nothing to do. Rows of a divided batch are computed beside other rows than in one session, so
    that they may round differently.

    A device on which work fails, and then succeeds on another, is taken out and named in `failures` and in the log; the
    others go on. Any number of threads may use a pool at once. `Batcher(pool, FirstCome(pool.budget), runs=pool.runs)`
    batches single requests on all of its devices.

    Args:
        sessions: name -> session of the same file, one or more; the pool closes them.
        costs: a table of `padfree costs`; None: the proportions of BERT-base.
        contexts: how many runs of every device may be under way at once.

    Raises:
        SessionError: no sessions, sessions of different models, or a table of another kind of model.
    """

    def __init__(
        self, sessions: Mapping[str, PoolSession], *, costs: CostTable | None = None, contexts: int = 2
    ) -> None:
        if not sessions:
            raise SessionError("the pool has no sessions, allowed: one or more; open one for every device")
        first = next(iter(sessions.values()))
        for name, session in sessions.items():
            if session.metadata != first.metadata:
                raise SessionError(f"{name} runs another model than the devices before it; open one file on all")
        self._metadata, self._budget = first.metadata, first.budget
        self._costs = costs or modelled_costs("padded" if first.budget.counts_padding else "packed")
        check_alike(self._costs, self._budget)
        self._shares = self._metadata.input_of_role(PREFIX) is not None
        self._members = Members(sessions)
        self._runs = contexts * len(sessions)
        self._workers = ThreadPoolExecutor(self._runs, thread_name_prefix="padfree-pool")
        self._ending = threading.Condition()
        self._under_way = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | Path,
        devices: Sequence[int] | None = None,
        *,
        costs: CostTable | None = None,
        allow_other_gpu: bool = False,
        cuda_graphs: bool = True,
        contexts: int = 2,
        max_graphs: int = 256,
    ) -> DevicePool:
        """Opens a plan on several GPUs.

        Args:
            path: model.plan with its model.plan.json beside it.
            devices: CUDA device numbers; None: all of this process.
            costs: a table of `padfree costs` of this plan.
            allow_other_gpu: as for Session.
            cuda_graphs: as for Session.
            contexts: as for Session, of every GPU.
            max_graphs: as for Session.

        Raises:
            SessionError: as Session, whose sessions are then all closed again; an .onnx file, which runs on the CPU.
        """
        if is_onnx(path):
            raise SessionError(
                f"{path}: an .onnx file runs on the CPU, allowed: plans; open it as a Session, or build an engine"
            )
        numbers = machine_devices() if devices is None else tuple(devices)
        check_devices(numbers)
        sessions: dict[str, Session] = {}
        try:
            for number in numbers:
                sessions[f"GPU {number}"] = Session(
                    path,
                    device=number,
                    allow_other_gpu=allow_other_gpu,
                    cuda_graphs=cuda_graphs,
                    contexts=contexts,
                    max_graphs=max_graphs,
                )
            for session in sessions.values():
                session.share_by(costs)
            return cls(sessions, costs=costs, contexts=contexts)
        except BaseException:
            for session in sessions.values():
                session.close()
            raise

    @property
    def metadata(self) -> Metadata:
        """What the file says about itself."""
        return self._metadata

    @property
    def budget(self) -> Budget:
        """What one run takes."""
        return self._budget

    @property
    def runs(self) -> int:
        """How many runs may be under way at once, on all devices: the `runs` of a Batcher."""
        return self._runs

    @property
    def devices(self) -> list[str]:
        """Names of the devices that answer."""
        return self._members.in_use()

    @property
    def failures(self) -> dict[str, str]:
        """Names of the devices that were taken out -> why."""
        return {name: one.failure for name, one in self.stats.items() if one.failure}

    @property
    def stats(self) -> dict[str, DeviceStats]:
        """Name of every device -> what it has done."""
        return self._members.stats()

    @property
    def tokens_saved(self) -> int:
        """As of a Session, of all devices."""
        return self._members.tokens_saved()

    def run(self, request: Mapping[str, Sequence[Any]] | Sequence[Any]) -> OutputRows:
        """Runs a ragged batch, as Session.run, with results on the host.

        Raises:
            SessionError: the request does not fit the model or the profile, or its run failed on every device.
        """
        return self.run_ragged(read_request(request, self._metadata))

    def run_ragged(self, ragged: RaggedBatch) -> OutputRows:
        """Runs a batch that `read_request` or `read_packed` has checked for this model; otherwise as `run`."""
        with self._running():
            devices, idle = len(self._members.in_use()), self._members.idle()
            if devices == 1 and self._shares:  # the session cuts runs by the tokens that it computes
                return self._run_part(ragged)
            lengths = computed_lengths(ragged, self._metadata, self._budget)
            parts = divide(lengths, self._costs, self._budget, devices=devices, idle=idle)
            if len(parts) == 1:
                return self._run_part(ragged)
            futures = [self._workers.submit(self._run_part, ragged.take(part)) for part in parts]
            numbers = [part.tolist() for part in parts]
            return in_order(zip(numbers, _results(futures), strict=True), lengths.size)

    def run_packed(self, inputs: Any, seq_lens: Any, *, filler_tokens: int = 0) -> dict[str, Any]:
        """Runs tokens that are packed already, in one run on one device, as Session.run_packed on the host.

        Raises:
            SessionError: as Session.run_packed; arrays on a GPU, which belong to one device.
        """
        if any_on_device(inputs, seq_lens):
            raise SessionError(
                "an input is on a GPU, allowed for a pool: arrays on the host; open a Session on the GPU that it is on"
            )
        if not self._metadata.is_packed:
            raise SessionError("run_packed needs a packed model, this one is padded; use run")
        ragged = read_packed(inputs, seq_lens, self._metadata, filler_tokens=filler_tokens)
        tokens = len(next(iter(ragged.tokens.values())))
        check_one_run(tokens, ragged.seq_lens.size, self._metadata)
        with self._running():
            return self._members.run(
                lambda session: session.backend.run(session.feeds(ragged)),
                self._costs.run_seconds(ragged.seq_lens),
                tokens,
            )

    def close(self) -> None:
        """Takes no more work, waits for what is under way and closes all sessions; harmless when called again."""
        with self._ending:
            if self._closed:
                return
            self._closed = True
            while self._under_way:
                self._ending.wait()
        self._workers.shutdown()
        self._members.close()

    def _run_part(self, ragged: RaggedBatch) -> OutputRows:
        cost_s = self._costs.run_seconds(ragged.seq_lens)
        return self._members.run(lambda session: session.run_ragged(ragged), cost_s, int(ragged.seq_lens.sum()))

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Keeps close() waiting."""
        with self._ending:
            if self._closed:
                raise SessionError("the pool is closed; open a new one")
            self._under_way += 1
        try:
            yield
        finally:
            with self._ending:
                self._under_way -= 1
                self._ending.notify_all()


def _results(futures: Sequence[Future[OutputRows]]) -> list[OutputRows]:
    """What the parts gave. Where one has failed, those that have not started never do, and no work goes on."""
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
    for future in futures:
        if not future.cancelled() and (error := future.exception()) is not None:
            raise error
    return [future.result() for future in futures]
