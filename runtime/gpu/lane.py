# SPDX-License-Identifier: Apache-2.0
"""What one engine keeps for one arena: a context for any shapes, and its graphs; one run from inputs to results."""

from __future__ import annotations

from typing import Any

from ..arrays.device_arrays import CallerStream, DeviceInput
from .arena import Arena, ArenaPool
from .engine import Engine, Placement
from .graph_cache import GraphCache
from .graph_runs import Captured, GraphRuns, GraphSwitch
from .hand_out import Array, HandOut, whole
from .results import HostResults
from .staging import Feeds, upload, wait_for_inputs


class Lane:
    """An engine on one arena. One caller at a time: who has borrowed the arena."""

    def __init__(
        self,
        engine: Engine,
        arena: Arena,
        pool: ArenaPool,
        results: HostResults,
        switch: GraphSwitch,
        graphs: GraphCache[Captured],
    ) -> None:
        self.arena = arena
        self._graph_runs = GraphRuns(engine, arena, switch, graphs)
        self._context = engine.new_context()
        self._hand_out = HandOut(engine, arena, pool, results)

    def run(self, feeds: Feeds, *, on_device: bool, stream: CallerStream | None) -> dict[str, Any]:
        """Runs the engine once.

        Args:
            feeds: input name -> values.
            on_device: results stay on the GPU.
            stream: the caller's stream: inputs are read, and results on the device are there, in its order.

        Returns:
            Output name -> NumPy array, or DeviceArray.
        """
        wait_for_inputs(self.arena, feeds, stream)
        shapes = {name: tuple(feed.shape) for name, feed in feeds.items()}
        ran = self._graph_runs.run(feeds, shapes)
        if ran is not None:
            placement, trim = ran
            if not on_device:
                return self._hand_out.to_host(placement, trim)
            memory = self._hand_out.device_memory(placement, stream)
            source = self.arena.block.address + placement.outputs_start
            self.arena.stream.copy(memory.address, source, placement.outputs_bytes)
            return self._hand_out.on_device(placement, memory, trim)
        placement = self._context.arrange(shapes)
        if not on_device:
            self._run_plain(placement, feeds, None)
            return self._hand_out.to_host(placement, whole)
        memory = self._hand_out.device_memory(placement, stream)
        self._run_plain(placement, feeds, memory.address)
        return self._hand_out.on_device(placement, memory, whole)

    def prepare(self, feeds: Feeds) -> Placement:
        """Puts inputs, in exactly their shapes, into the block and binds the plain context to it."""
        wait_for_inputs(self.arena, feeds, None)
        placement = self._context.arrange({name: tuple(feed.shape) for name, feed in feeds.items()})
        self._context.place(self.arena.block.reserve(placement.size_bytes))
        upload(self.arena, feeds, placement)
        return placement

    def enqueue(self) -> None:
        """Puts one run of the plain context on the arena's stream."""
        self._context.enqueue(self.arena.stream.handle)

    def profile(self, profiler: Any, runs: int) -> None:
        """Runs the plain context under a tensorrt.IProfiler, which TensorRT keeps from then on."""
        self._context.set_profiler(profiler)
        for _ in range(runs):
            self.enqueue()
            self.arena.stream.synchronize()

    def upload(self, feeds: Feeds, placement: Placement) -> None:
        """Puts other inputs of the same shapes into their places."""
        upload(self.arena, feeds, placement)

    def download(self, placement: Placement) -> dict[str, Array]:
        """The outputs of the newest run, on the host."""
        return self._hand_out.to_host(placement, whole)

    def close(self) -> None:
        """Waits for the lane's work and destroys graphs and contexts."""
        self._hand_out.close()
        self._graph_runs.close()
        del self._context

    def _run_plain(self, placement: Placement, feeds: Feeds, outputs_at: int | None) -> None:
        """One run in exactly the shapes that came; inputs on the device are read where they are."""
        in_place = {name: feed.address for name, feed in feeds.items() if isinstance(feed, DeviceInput) and feed.nbytes}
        base = self.arena.block.reserve(placement.size_bytes)
        self._context.place(base, inputs_at=in_place, outputs_at=outputs_at)
        upload(self.arena, {name: feed for name, feed in feeds.items() if name not in in_place}, placement)
        self.enqueue()
