# SPDX-License-Identifier: Apache-2.0
"""What one engine keeps for one arena: a context for any shapes, and its graphs; one run from inputs to results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..arrays.device_arrays import CallerStream, DeviceFeeds
from ..backend import RunOptions
from ..rows import Array
from .arena import Arena, ArenaPool
from .buckets import Shape
from .engine import Engine
from .graph_runs import GraphRuns, GraphSwitch, Ready
from .hand_out import HandOut, PendingResults, whole
from .results import HostResults
from .staging import device_inputs, in_place, wait_for_inputs


class Lane:
    """An engine on one arena; used by one caller at a time, the one that has borrowed the arena."""

    def __init__(
        self,
        engine: Engine,
        arena: Arena,
        pool: ArenaPool,
        results: HostResults,
        switch: GraphSwitch,
        options: RunOptions,
    ) -> None:
        self.arena = arena
        self._engine = engine
        self._graph_runs = GraphRuns(engine, arena, switch, options)
        self._context = engine.new_context()
        self._ready: Ready | None = None
        self._hand_out = HandOut(engine, arena, pool, results)

    def start(self, feeds: DeviceFeeds, *, on_device: bool, stream: CallerStream | None) -> PendingResults:
        """Puts one run of the engine on the arena's stream.

        Args:
            feeds: input name -> values.
            on_device: results stay on the GPU.
            stream: the caller's stream: inputs are read, and results on the device are there, in its order.

        Returns:
            Output name -> NumPy array, or DeviceArray; and what waits for them.
        """
        device_feeds = device_inputs(feeds)
        wait_for_inputs(self.arena, device_feeds, stream)
        shapes = {name: feed.shape for name, feed in feeds.items()}
        is_async = on_device and stream is not None
        graph_run = self._graph_runs.run(feeds, device_feeds, shapes, is_async=is_async)
        if graph_run is not None:
            ready, trim = graph_run
            placement = ready.placement
            if not on_device:
                return self._hand_out.to_host(placement, ready.views, trim)
            memory = self._hand_out.device_memory(placement, stream)
            source = self.arena.block.address + placement.outputs_start
            self.arena.stream.copy(memory.address, source, placement.outputs_bytes)
            return self._hand_out.on_device(ready.views, memory, trim)
        ready = self._arrange(shapes)
        if not on_device:
            self._run_plain(ready, feeds, None, is_async=is_async)
            return self._hand_out.to_host(ready.placement, ready.views, whole)
        memory = self._hand_out.device_memory(ready.placement, stream)
        self._run_plain(ready, feeds, memory.address, is_async=is_async)
        return self._hand_out.on_device(ready.views, memory, whole)

    def prepare(self, feeds: DeviceFeeds) -> Ready:
        """Puts inputs, in exactly their shapes, into the block and binds the plain context to it."""
        wait_for_inputs(self.arena, device_inputs(feeds), None)
        ready = self._arrange({name: feed.shape for name, feed in feeds.items()})
        self._context.bind(self.arena.block.reserve(ready.placement.size_bytes))
        ready.staging.upload(feeds, is_async=True)
        return ready

    def enqueue(self) -> None:
        """Puts one run of the plain context on the arena's stream."""
        self._context.enqueue(self.arena.stream.handle)

    def profile(self, profiler: Any, runs: int) -> None:
        """Runs the plain context under a tensorrt.IProfiler, which TensorRT keeps from then on."""
        self._context.set_profiler(profiler)
        for _ in range(runs):
            self.enqueue()
            self.arena.stream.synchronize()

    def download(self, ready: Ready) -> dict[str, Array]:
        """The outputs of the newest run, on the host."""
        outputs, finish = self._hand_out.to_host(ready.placement, ready.views, whole)
        finish()
        return outputs

    def close(self) -> None:
        """Waits for the lane's work and destroys graphs and contexts."""
        self._hand_out.close()
        self._graph_runs.close()
        del self._context

    def _arrange(self, shapes: Mapping[str, Shape]) -> Ready:
        """The plain context's placement for these shapes, with what its runs need."""
        placement = self._context.arrange(shapes)
        if self._ready is None or self._ready.placement is not placement:
            self._ready = Ready.of(placement, self.arena, self._engine)
        return self._ready

    def _run_plain(self, ready: Ready, feeds: DeviceFeeds, outputs_at: int | None, *, is_async: bool) -> None:
        """One run in exactly the shapes that came; inputs on the device are read where they are."""
        inputs_at = in_place(device_inputs(feeds))
        base = self.arena.block.reserve(ready.placement.size_bytes)
        self._context.bind(base, inputs_at=inputs_at, outputs_at=outputs_at)
        ready.staging.upload(feeds, is_async=is_async, left_out=inputs_at)
        self.enqueue()
