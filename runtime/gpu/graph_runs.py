# SPDX-License-Identifier: Apache-2.0
"""Which runs of a lane are replayed as CUDA graphs, and how these are captured.

TensorRT's advice on CUDA graphs is followed to the letter (developer guide, "CUDA Graphs"): one plain run after every
change of shapes and before every capture, one context for every captured graph, device memory shared by the contexts
through USER_MANAGED allocation, no work on the legacy stream meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ..arrays.device_arrays import DeviceFeeds
from ..backend import RunOptions
from ..errors import SessionError
from .arena import Arena
from .buckets import Buckets, Shape, Sizes, serves
from .cuda import Graph, free_bytes
from .engine import Context, Engine, Placement
from .graph_cache import GraphCache
from .hand_out import Trim, View, views_of, whole
from .staging import DeviceInputs, StagingBuffers, in_place

_log = logging.getLogger("padfree.runtime")

GraphKey = tuple[Sizes, tuple[tuple[str, int], ...]]
"""Key of a graph that reads inputs in the caller's memory: its sizes, and the inputs' names and addresses."""
IN_PLACE_USES = 64
"""Addresses used this often are expected again. A capture takes as long as hundreds of runs save without copies."""
IN_PLACE_DIVISOR = 4  # so many times fewer graphs, and less of their memory, than for sizes


class GraphSwitch:
    """Whether an engine's runs are captured; switched off for good by the first capture that fails."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def turn_off(self, reason: Exception) -> None:
        """Says once why."""
        if self.on:
            self.on = False
            _log.warning("no CUDA graphs for this engine, runs stay plain: %s", reason)


@dataclass(frozen=True)
class Ready:
    """A placement on one arena with what all of its runs need, made once."""

    placement: Placement
    staging: StagingBuffers
    views: tuple[View, ...]

    @staticmethod
    def of(placement: Placement, arena: Arena, engine: Engine) -> Ready:
        """The placement with what the engine's runs on this arena need."""
        return Ready(placement, StagingBuffers(arena, placement), views_of(engine.metadata, placement))


@dataclass(frozen=True)
class CapturedGraph:
    """A graph, the context that it was captured from, and the addresses that it reads and writes."""

    graph: Graph
    context: Context
    ready: Ready
    size_bytes: int

    def close(self) -> None:
        """Destroys the graph; the context goes with the last reference."""
        self.graph.close()


class GraphRuns:
    """The graphs of an engine on one arena."""

    def __init__(self, engine: Engine, arena: Arena, switch: GraphSwitch, options: RunOptions) -> None:
        self._engine = engine
        self._arena = arena
        self._switch = switch
        # Those that read all inputs in the block, and those that read some where a caller has them.
        self._graphs = GraphCache[Sizes, CapturedGraph](options.max_graphs, options.max_graph_bytes)
        self._in_place = GraphCache[GraphKey, CapturedGraph](
            -(-options.max_graphs // IN_PLACE_DIVISOR), options.max_graph_bytes // IN_PLACE_DIVISOR, IN_PLACE_USES
        )
        self._buckets = Buckets(engine.metadata) if switch.on and arena.block.keeps_address else None

    def run(
        self, feeds: DeviceFeeds, on_device: DeviceInputs, shapes: Mapping[str, Shape], *, is_async: bool
    ) -> tuple[Ready, Trim] | None:
        """Runs the engine in sizes that have a graph, or get one now; None, and no run, where they do not.

        Outputs lie in the arena's block, as the placement says; `Trim` cuts what belongs to filler off their shapes.
        `on_device`: those of `feeds` that are there. `is_async`: nobody waits for the end of the run before the arena
        is borrowed again.
        """
        buckets = self._buckets
        if buckets is None or not self._switch.on:
            return None
        sizes = buckets.sizes(shapes)
        rounded = buckets.round_up(sizes)
        entry = self._graphs.get(rounded)
        larger = None if entry is not None else self._graphs.get_smallest(lambda graph: serves(graph, rounded))
        if entry is None and self._graphs.returns(rounded, is_served=larger is not None):
            ready, entry = self._run_and_capture(buckets.input_shapes(rounded), feeds, {})
            if entry is not None:
                self._graphs.put(rounded, entry)
        else:
            if larger is not None:
                rounded, entry = larger
            if entry is None:
                return None
            ready = self._replay(entry, rounded, feeds, on_device, is_async)
        return ready, whole if sizes == rounded else lambda output, shape: buckets.trim(output, shape, sizes)

    def close(self) -> None:
        """Destroys all graphs."""
        self._graphs.close()
        self._in_place.close()

    def _replay(
        self, entry: CapturedGraph, sizes: Sizes, feeds: DeviceFeeds, on_device: DeviceInputs, is_async: bool
    ) -> Ready:
        """Runs the graph that reads inputs where they are, if there is one for their addresses; otherwise the other."""
        allocations = entry.ready.placement.inputs
        inputs_at = in_place(on_device, allocations) if on_device else {}
        if inputs_at:
            key = sizes, tuple(inputs_at.items())
            reader = self._in_place.get(key)
            if reader is not None:
                entry = reader
            elif self._in_place.returns(key):
                shapes = {name: allocation.shape for name, allocation in allocations.items()}
                ready, reader = self._run_and_capture(shapes, feeds, inputs_at)
                if reader is not None:
                    self._in_place.put(key, reader)
                return ready
            else:
                inputs_at = {}
        if len(inputs_at) < len(feeds):
            entry.ready.staging.upload(feeds, is_async=is_async, left_out=inputs_at)
        entry.graph.launch()
        return entry.ready

    def _run_and_capture(
        self, shapes: Mapping[str, Shape], feeds: DeviceFeeds, inputs_at: Mapping[str, int]
    ) -> tuple[Ready, CapturedGraph | None]:
        """Serves a run by the plain one that comes before a capture, and gives the graph for the runs that follow."""
        stream = self._arena.stream
        free_before = free_bytes()
        context = self._engine.new_context()
        context_bytes = free_before - free_bytes()
        placement = context.arrange(shapes)
        context.bind(self._arena.block.reserve(placement.size_bytes), inputs_at=inputs_at)
        ready = Ready.of(placement, self._arena, self._engine)
        ready.staging.upload(feeds, is_async=False, left_out=inputs_at)
        context.enqueue(stream.handle)
        stream.synchronize()
        free_before = free_bytes()
        try:
            graph = stream.capture(lambda: context.enqueue(stream.handle))
        except SessionError as error:
            self._switch.turn_off(error)
            return ready, None
        graph_bytes = context_bytes + free_before - free_bytes()  # as far as other threads leave the figure alone
        return ready, CapturedGraph(graph, context, ready, max(0, graph_bytes))
