# SPDX-License-Identifier: Apache-2.0
"""Runs plans in TensorRT, for any number of threads: each run borrows an arena and the engine's lane on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from padfree.contract.metadata import Metadata

from ..arrays.device_arrays import CallerStream, DeviceFeeds, DeviceInput, read_device_array
from ..backend import RunOptions
from ..errors import SessionError
from ..masks import check_padding
from .arena import Arena, arena_pool
from .cuda import current_device, device_of, kept_device
from .engine import Engine
from .graph_runs import GraphSwitch
from .lane import Lane
from .prepared_run import PreparedRun
from .results import HostResults


class StartedRun:
    """A run under way, which holds an arena until wait() has returned."""

    __slots__ = ("_arena", "_backend", "_finish", "outputs")

    def __init__(
        self, backend: TensorRTBackend, arena: Arena, outputs: dict[str, Any], finish: Callable[[], None]
    ) -> None:
        self.outputs = outputs
        self._backend = backend
        self._arena = arena
        self._finish = finish

    def wait(self) -> None:
        """Waits for the results, and gives the arena back. Called once."""
        try:
            self._finish()
        finally:
            self._backend.end(self._arena)


class TensorRTBackend:
    """An engine that any number of threads may run; as many at once as there are contexts, the others wait.

    `content` are the plan's bytes where no file holds them yet.

    Raises:
        SessionError: no TensorRT, no GPU or an old one, a plan from elsewhere, no plugin library.
    """

    def __init__(
        self,
        plan: Path,
        metadata: Metadata,
        *,
        device: int = 0,
        allow_other_gpu: bool = False,
        options: RunOptions | None = None,
        content: bytes | memoryview | None = None,
    ) -> None:
        self._options = options or RunOptions()
        self._metadata = metadata
        with kept_device():  # opening makes the GPU current, and the caller's thread may work on another one
            self._engine = Engine(plan, metadata, device=device, allow_other_gpu=allow_other_gpu, content=content)
        self._device = self._engine.device
        self._pool = arena_pool(self._device)
        self._pool.join()
        self._results = HostResults(self._device)
        self._switch = GraphSwitch(self._options.cuda_graphs and self.can_capture and metadata.interface == "packed")
        self._lanes: dict[int, Lane] = {}
        self._prepared_runs: list[PreparedRun] = []
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._runs = 0
        self._closed = False

    @property
    def can_capture(self) -> bool:
        """Whether every shape follows from the inputs' shapes: PadfreeIndex alone makes one that depends on data."""
        return "PadfreeIndex" not in self._metadata.plugins

    @property
    def static_bytes(self) -> int:
        """Activation memory that a context would take if TensorRT allocated it, for the whole profile."""
        return self._engine.static_bytes()

    @property
    def block_bytes(self) -> int:
        """Device memory that the arenas of this GPU hold for inputs, outputs and activations of all sessions."""
        return sum(self._pool.block_bytes())

    def run(self, feeds: DeviceFeeds, *, on_device: bool = False, stream: CallerStream | None = None) -> dict[str, Any]:
        """Runs the engine once, in a CUDA graph where these sizes have been captured.

        Args:
            feeds: input name -> array of the host, or DeviceInput.
            on_device: give DeviceArrays instead of NumPy arrays.
            stream: the caller's stream: inputs are read, and results on the device are there, in its order.
        """
        started = self.start(feeds, on_device=on_device, stream=stream)
        assert started is not None  # None only if not patient
        started.wait()
        return started.outputs

    def start(
        self, feeds: DeviceFeeds, *, on_device: bool = False, stream: CallerStream | None = None, patient: bool = True
    ) -> StartedRun | None:
        """Begins a run; whoever starts one has to wait for it. Arguments as for run.

        Where it is not patient and as many runs are under way as there are contexts, there is None, and no run.
        """
        check_padding(feeds, self._metadata)
        self._enter()
        arena: Arena | None = None
        try:
            with current_device(self._device):
                arena = self._pool.borrow(self._options.contexts, patient=patient)
                if arena is not None:
                    outputs, finish = self._lane(arena).start(feeds, on_device=on_device, stream=stream)
                    return StartedRun(self, arena, outputs, finish)
        except BaseException:
            if arena is not None:
                self._settle(arena)
            self._leave()
            raise
        self._leave()
        return None

    def end(self, arena: Arena) -> None:
        """Gives back what a run has borrowed."""
        self._pool.give_back(arena)
        self._leave()

    def read_device_array(self, value: Any, name: str, stream: CallerStream | None) -> DeviceInput:
        """Checks an array on the GPU for an input; its values are there in the order of `stream`."""
        with current_device(self._device):
            return read_device_array(
                value, name, self._engine.dtypes[name], device=self._device, stream=stream, device_of=device_of
            )

    def prepare(self, feeds: DeviceFeeds) -> PreparedRun:
        """Holds one batch ready to be measured, beside what other runs do."""
        self._enter()
        try:
            with current_device(self._device):
                lane = self._new_lane(Arena(0, self._device), GraphSwitch(False))
                run = PreparedRun(lane, feeds, device=self._device, can_capture=self.can_capture)
                self._prepared_runs.append(run)
                return run
        finally:
            self._leave()

    def close(self) -> None:
        """Waits for runs that are under way and frees everything; harmless when called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            while self._runs:
                self._idle.wait()
        with current_device(self._device):
            for run in self._prepared_runs:
                run.close()
            self._prepared_runs.clear()
            for lane in self._lanes.values():
                lane.close()
            self._lanes.clear()
            self._results.close()
            self._engine.close()
            self._pool.leave()

    def _enter(self) -> None:
        """Keeps close() waiting, until _leave()."""
        with self._lock:
            if self._closed:
                raise SessionError("the session is closed; open a new one")
            self._runs += 1

    def _leave(self) -> None:
        with self._lock:
            self._runs -= 1
            if self._closed:
                self._idle.notify_all()

    def _lane(self, arena: Arena) -> Lane:
        """This engine's lane on an arena that is borrowed."""
        lane = self._lanes.get(arena.index)
        if lane is None:
            lane = self._lanes[arena.index] = self._new_lane(arena, self._switch)
        return lane

    def _settle(self, arena: Arena) -> None:
        """Gives back the arena of a run that failed half-way, when nothing of it is under way."""
        with contextlib.suppress(SessionError):  # the first error is the one to tell
            arena.stream.synchronize()
        self._pool.give_back(arena)

    def _new_lane(self, arena: Arena, switch: GraphSwitch) -> Lane:
        return Lane(self._engine, arena, self._pool, self._results, switch, self._options)
