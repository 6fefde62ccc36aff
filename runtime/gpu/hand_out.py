# SPDX-License-Identifier: Apache-2.0
"""Results on their way out of an arena: to the host in one copy, or left on the device in memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import OutputInfo

from ..arrays.device_arrays import CallerStream, DeviceArray, contiguous_strides
from ..backend import widen_bfloat16
from .arena import Arena, ArenaPool
from .buckets import Shape
from .cuda import Event
from .engine import Engine, Placement
from .results import DeviceMemory, HostResults

Array = npt.NDArray[Any]
Trim = Callable[[OutputInfo, Shape], Shape]
"""The shape of an output without what belongs to filler."""


def whole(_output: OutputInfo, shape: Shape) -> Shape:
    """Of runs in exactly the shapes that came: nothing belongs to filler."""
    return shape


class HandOut:
    """Gives out what an engine computed on one arena."""

    def __init__(self, engine: Engine, arena: Arena, pool: ArenaPool, results: HostResults) -> None:
        self._engine = engine
        self._arena = arena
        self._pool = pool
        self._results = results
        self._done = Event()

    def device_memory(self, placement: Placement, stream: CallerStream | None) -> DeviceMemory:
        """Memory on the device for all outputs of a placement."""
        made_on = self._arena.stream.handle
        return DeviceMemory(self._pool, self._engine.device, placement.outputs_bytes, made_on=made_on, stream=stream)

    def on_device(self, placement: Placement, memory: DeviceMemory, trim: Trim) -> dict[str, DeviceArray]:
        """Results that lie in `memory`: there when this returns, or in the order of the caller's stream."""
        arena = self._arena
        self._done.record(arena.stream.handle)
        results = {}  # made while the GPU works
        for item in self._engine.metadata.outputs:
            place = placement.outputs[item.name]
            address = memory.address + place.offset - placement.outputs_start
            shape = trim(item, place.shape)
            results[item.name] = DeviceArray(memory, address, shape, item.dtype, contiguous_strides(place.shape))
        if memory.stream is None:
            arena.stream.synchronize()
        else:
            arena.crossing.order(arena.stream.handle, memory.stream)
        return results

    def to_host(self, placement: Placement, trim: Trim) -> dict[str, Array]:
        """Results of the arena's block on the host, in one copy."""
        arena = self._arena
        memory = self._results.lend(placement.outputs_bytes)
        if memory is None:
            memory = np.empty(placement.outputs_bytes, dtype=np.uint8)
        source = arena.block.address + placement.outputs_start
        arena.stream.copy(memory.ctypes.data, source, placement.outputs_bytes)
        results = {}  # views, made while the GPU works
        for item in self._engine.metadata.outputs:
            place = placement.outputs[item.name]
            start = place.offset - placement.outputs_start
            values = memory[start : start + place.size_bytes].view(place.dtype).reshape(place.shape)
            shape = trim(item, place.shape)
            if shape != place.shape:
                values = values[tuple(slice(size) for size in shape)]
            results[item.name] = values
        arena.stream.synchronize()
        for item in self._engine.metadata.outputs:
            if item.dtype == "bfloat16":
                results[item.name] = widen_bfloat16(results[item.name])
        return results

    def close(self) -> None:
        """Waits for the results that were handed out last."""
        self._done.synchronize()
        self._done.close()
