# SPDX-License-Identifier: Apache-2.0
"""What one engine keeps for one arena: a context for any shapes, and captured graphs, each with a context of its own.

TensorRT's advice on CUDA graphs is followed to the letter (developer guide, "CUDA Graphs"): one plain run after every
change of shapes and before every capture, one context for every captured graph, device memory shared by the contexts
through USER_MANAGED allocation, no work on the legacy stream meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import OutputInfo

from ..arrays.device_arrays import LEGACY_STREAM, CallerStream, DeviceArray, DeviceInput, contiguous_strides
from ..backend import widen_bfloat16
from ..errors import SessionError
from .arena import Arena, ArenaPool
from .buckets import Buckets, Shape, Sizes
from .cuda import Event, Graph, free_bytes
from .engine import Context, Engine, Layout
from .graph_cache import GraphCache
from .results import DeviceMemory, HostResults

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array | DeviceInput]

_log = logging.getLogger("padfree.runtime")


class GraphSwitch:
    """Whether an engine's runs are captured; turned off for good by the first capture that fails."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def turn_off(self, reason: Exception) -> None:
        """Says once why."""
        if self.on:
            self.on = False
            _log.warning("no CUDA graphs for this engine, runs stay plain: %s", reason)


@dataclass(frozen=True)
class Captured:
    """A graph, the context that it was captured from, and the places that it reads and writes."""

    graph: Graph
    context: Context
    layout: Layout
    size_bytes: int

    def close(self) -> None:
        """Destroys the graph; the context goes with the last reference."""
        self.graph.close()


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
        self._engine = engine
        self._pool = pool
        self._results = results
        self._switch = switch
        self._graphs = graphs
        self._buckets = Buckets(engine.metadata) if switch.on and arena.block.keeps_address else None
        self._context = engine.new_context()
        self._done = Event()

    def run(self, feeds: Feeds, *, on_device: bool, stream: CallerStream | None) -> dict[str, Any]:
        """Runs the engine once.

        Args:
            feeds: input name -> values.
            on_device: results stay on the GPU.
            stream: the caller's stream: inputs are read, and results on the device are there, in its order.

        Returns:
            Output name -> NumPy array, or DeviceArray.
        """
        self._wait_for_inputs(feeds, stream)
        shapes = {name: tuple(feed.shape) for name, feed in feeds.items()}
        if self._buckets is not None and self._switch.on:
            sizes = self._buckets.sizes(shapes)
            rounded = self._buckets.round_up(sizes)
            captured = self._graphs.get(rounded)
            if captured is not None or self._graphs.returns(rounded):
                layout = self._replay(captured, feeds) if captured else self._run_and_capture(rounded, feeds)
                if not on_device:
                    return self._download(layout, sizes)
                memory = self._device_memory(layout, stream)
                source = self.arena.block.address + layout.outputs_start
                self.arena.stream.copy(memory.address, source, layout.outputs_bytes)
                return self._hand_out(layout, sizes, memory)
        layout = self._context.lay_out(shapes)
        if not on_device:
            self._run_plain(layout, feeds, None)
            return self._download(layout, None)
        memory = self._device_memory(layout, stream)
        self._run_plain(layout, feeds, memory.address)
        return self._hand_out(layout, None, memory)

    def prepare(self, feeds: Feeds) -> Layout:
        """Puts inputs, in exactly their shapes, into the block and binds the plain context to it."""
        self._wait_for_inputs(feeds, None)
        layout = self._context.lay_out({name: tuple(feed.shape) for name, feed in feeds.items()})
        self._context.place(self.arena.block.reserve(layout.size_bytes))
        self.upload(feeds, layout)
        return layout

    def enqueue(self) -> None:
        """Puts one run of the plain context on the arena's stream."""
        self._context.enqueue(self.arena.stream.handle)

    def profile(self, profiler: Any, runs: int) -> None:
        """Runs the plain context under a tensorrt.IProfiler, which TensorRT keeps from then on."""
        self._context.set_profiler(profiler)
        for _ in range(runs):
            self.enqueue()
            self.arena.stream.synchronize()

    def upload(self, feeds: Feeds, layout: Layout) -> None:
        """Puts inputs into their places: those of the host in one copy. What is left of a place becomes zeros."""
        base = self.arena.block.address
        staged = [(layout.inputs[name], feed) for name, feed in feeds.items() if not isinstance(feed, DeviceInput)]
        if staged:
            start = min(place.offset for place, _ in staged)
            end = max(place.offset + place.size_bytes for place, _ in staged)
            self.arena.reserve_staging(end)
            for place, values in staged:
                room = self.arena.staging[place.offset : place.offset + place.size_bytes].view(place.dtype)
                np.copyto(room[: values.size], values.reshape(-1), casting="same_kind")
                room[values.size :] = 0
            if end > start:
                self.arena.upload_staging(start, end - start, base + start)
        for name, feed in feeds.items():
            if isinstance(feed, DeviceInput):
                place = layout.inputs[name]
                if feed.nbytes:
                    self.arena.stream.copy(base + place.offset, feed.address, feed.nbytes)
                if place.size_bytes > feed.nbytes:
                    self.arena.stream.zero(base + place.offset + feed.nbytes, place.size_bytes - feed.nbytes)

    def download(self, layout: Layout) -> dict[str, Array]:
        """The outputs of the newest run, on the host."""
        return self._download(layout, None)

    def close(self) -> None:
        """Waits for the lane's work and destroys graphs and contexts."""
        self._done.synchronize()
        self._graphs.close()
        self._done.close()
        del self._context

    def _wait_for_inputs(self, feeds: Feeds, stream: CallerStream | None) -> None:
        """Orders the arena's stream behind those that inputs on the device are made on."""
        inputs = [feed for feed in feeds.values() if isinstance(feed, DeviceInput)]
        producers = {feed.stream for feed in inputs if feed.stream is not None}
        if stream is not None:
            producers.add(stream.handle)
        elif inputs:
            producers.add(LEGACY_STREAM)
        for producer in producers:
            self.arena.crossing.order(producer, self.arena.stream.handle)

    def _run_plain(self, layout: Layout, feeds: Feeds, outputs_at: int | None) -> None:
        """One run in exactly the shapes that came; inputs on the device are read where they are."""
        in_place = {name: feed.address for name, feed in feeds.items() if isinstance(feed, DeviceInput) and feed.nbytes}
        base = self.arena.block.reserve(layout.size_bytes)
        self._context.place(base, inputs_at=in_place, outputs_at=outputs_at)
        self.upload({name: feed for name, feed in feeds.items() if name not in in_place}, layout)
        self.enqueue()

    def _replay(self, captured: Captured, feeds: Feeds) -> Layout:
        self.upload(feeds, captured.layout)
        captured.graph.launch()
        return captured.layout

    def _run_and_capture(self, sizes: Sizes, feeds: Feeds) -> Layout:
        """Serves a run by the plain one that comes before a capture; the next run of these sizes finds the graph."""
        assert self._buckets is not None  # without them nothing is captured
        stream = self.arena.stream
        free_before = free_bytes()
        context = self._engine.new_context()
        context_bytes = free_before - free_bytes()
        layout = context.lay_out(self._buckets.input_shapes(sizes))
        context.place(self.arena.block.reserve(layout.size_bytes))
        self.upload(feeds, layout)
        context.enqueue(stream.handle)
        stream.synchronize()
        free_before = free_bytes()
        try:
            graph = stream.capture(lambda: context.enqueue(stream.handle))
        except SessionError as error:
            self._switch.turn_off(error)
            return layout
        taken = context_bytes + free_before - free_bytes()  # as far as other threads leave the figure alone
        self._graphs.put(sizes, Captured(graph, context, layout, max(0, taken)))
        return layout

    def _device_memory(self, layout: Layout, stream: CallerStream | None) -> DeviceMemory:
        made_on = self.arena.stream.handle
        return DeviceMemory(self._pool, self._engine.device, layout.outputs_bytes, made_on=made_on, stream=stream)

    def _hand_out(self, layout: Layout, sizes: Sizes | None, memory: DeviceMemory) -> dict[str, DeviceArray]:
        """Results on the device: there when this returns, or in the order of the caller's stream."""
        arena = self.arena
        self._done.record(arena.stream.handle)
        results = {}  # made while the GPU works
        for item in self._engine.metadata.outputs:
            place = layout.outputs[item.name]
            address = memory.address + place.offset - layout.outputs_start
            shape = self._trimmed(item, place.shape, sizes)
            results[item.name] = DeviceArray(memory, address, shape, item.dtype, contiguous_strides(place.shape))
        if memory.stream is None:
            arena.stream.synchronize()
        else:
            arena.crossing.order(arena.stream.handle, memory.stream)
        return results

    def _download(self, layout: Layout, sizes: Sizes | None) -> dict[str, Array]:
        """Results on the host, in one copy."""
        arena = self.arena
        memory = self._results.lend(layout.outputs_bytes)
        if memory is None:
            memory = np.empty(layout.outputs_bytes, dtype=np.uint8)
        source = arena.block.address + layout.outputs_start
        arena.stream.copy(memory.ctypes.data, source, layout.outputs_bytes)
        results = {}  # views, made while the GPU works
        for item in self._engine.metadata.outputs:
            place = layout.outputs[item.name]
            start = place.offset - layout.outputs_start
            values = memory[start : start + place.size_bytes].view(place.dtype).reshape(place.shape)
            shape = self._trimmed(item, place.shape, sizes)
            if shape != place.shape:
                values = values[tuple(slice(size) for size in shape)]
            results[item.name] = values
        arena.stream.synchronize()
        for item in self._engine.metadata.outputs:
            if item.dtype == "bfloat16":
                results[item.name] = widen_bfloat16(results[item.name])
        return results

    def _trimmed(self, output: OutputInfo, shape: Shape, sizes: Sizes | None) -> Shape:
        """The shape of an output without what belongs to filler; `sizes` is None for runs in exact shapes."""
        if sizes is None or self._buckets is None:
            return shape
        return self._buckets.trim(output, shape, sizes)
