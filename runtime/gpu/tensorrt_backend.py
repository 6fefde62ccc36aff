# SPDX-License-Identifier: Apache-2.0
"""Runs plans in TensorRT, for any number of threads: each run borrows an arena and the engine's lane on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from padfree.contract.metadata import Metadata

from ..arrays.device_arrays import CallerStream, DeviceInput, read_device_array
from ..backend import RunOptions
from ..errors import SessionError
from .arena import Arena, arena_pool
from .cuda import current_device, device_of
from .engine import Engine
from .graph_cache import GraphCache
from .graph_runs import Captured, GraphSwitch
from .lane import Lane
from .prepared import PreparedRun
from .results import HostResults
from .staging import Feeds


class TensorRTBackend:
    """An engine that any number of threads may run; as many at once as there are contexts, the others wait.

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
    ) -> None:
        self._options = options or RunOptions()
        self._metadata = metadata
        self._engine = Engine(plan, metadata, device=device, allow_other_gpu=allow_other_gpu)
        self._device = self._engine.device
        self._pool = arena_pool(self._device)
        self._pool.join()
        self._results = HostResults(self._device)
        self._switch = GraphSwitch(self._options.cuda_graphs and self.can_capture and metadata.interface == "packed")
        self._lanes: dict[int, Lane] = {}
        self._prepared: list[PreparedRun] = []
        self._idle = threading.Condition()
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

    def run(self, feeds: Feeds, *, on_device: bool = False, stream: CallerStream | None = None) -> dict[str, Any]:
        """Runs the engine once, in a CUDA graph where these sizes have been captured.

        Args:
            feeds: input name -> array of the host, or DeviceInput.
            on_device: give DeviceArrays instead of NumPy arrays.
            stream: the caller's stream: inputs are read, and results on the device are there, in its order.
        """
        with self._borrowed() as lane:
            return lane.run(feeds, on_device=on_device, stream=stream)

    def read_device_array(self, value: Any, name: str, stream: CallerStream | None) -> DeviceInput:
        """Checks an array on the GPU for an input; its values are there in the order of `stream`."""
        with current_device(self._device):
            return read_device_array(
                value, name, self._engine.dtypes[name], device=self._device, stream=stream, device_of=device_of
            )

    def prepare(self, feeds: Feeds) -> PreparedRun:
        """Holds one batch ready to be measured, beside what other runs do."""
        with self._running(), current_device(self._device):
            lane = self._new_lane(Arena(0, self._device), GraphSwitch(False))
            prepared = PreparedRun(lane, feeds, device=self._device, can_capture=self.can_capture)
            self._prepared.append(prepared)
            return prepared

    def close(self) -> None:
        """Waits for runs that are under way and frees everything; harmless when called again."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            while self._runs:
                self._idle.wait()
        with current_device(self._device):
            for prepared in self._prepared:
                prepared.close()
            self._prepared.clear()
            for lane in self._lanes.values():
                lane.close()
            self._lanes.clear()
            self._results.close()
            self._engine.close()
            self._pool.leave()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Keeps close() waiting."""
        with self._idle:
            if self._closed:
                raise SessionError("the session is closed; open a new one")
            self._runs += 1
        try:
            yield
        finally:
            with self._idle:
                self._runs -= 1
                self._idle.notify_all()

    @contextmanager
    def _borrowed(self) -> Iterator[Lane]:
        """This engine's lane on a free arena, for one run."""
        with self._running(), current_device(self._device):
            arena = self._pool.borrow(self._options.contexts)
            try:
                lane = self._lanes.get(arena.index)
                if lane is None:
                    lane = self._lanes[arena.index] = self._new_lane(arena, self._switch)
                yield lane
            finally:
                self._pool.give_back(arena)

    def _new_lane(self, arena: Arena, switch: GraphSwitch) -> Lane:
        graphs = GraphCache[Captured](self._options.max_graphs, self._options.max_graph_bytes)
        return Lane(self._engine, arena, self._pool, self._results, switch, graphs)
