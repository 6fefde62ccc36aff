# SPDX-License-Identifier: Apache-2.0
"""Results on their way out of an arena: to the host in one copy, or left on the device in memory of their own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from padfree.contract.metadata import Metadata, OutputInfo

from ..arrays.device_arrays import CallerStream, DeviceArray, contiguous_strides
from ..backend import widen_bfloat16
from ..rows import Array
from .arena import Arena, ArenaPool
from .buckets import Shape
from .cuda import Event
from .engine import Engine, Placement
from .results import DeviceMemory, HostResults

Trim = Callable[[OutputInfo, Shape], Shape]
"""The shape of an output without what belongs to filler."""


def whole(_output: OutputInfo, shape: Shape) -> Shape:
    """The shape of outputs without filler: those of runs in exactly the shapes that came."""
    return shape


class View(NamedTuple):
    """An output in memory that holds all outputs of a placement: where it begins, and its steps from index to index."""

    item: OutputInfo
    start: int
    shape: Shape
    dtype: np.dtype[Any]
    steps: Shape
    steps_bytes: Shape


def views_of(metadata: Metadata, placement: Placement) -> tuple[View, ...]:
    """The outputs of a placement, found once for all of its runs."""
    views = []
    for item in metadata.outputs:
        allocation = placement.outputs[item.name]
        steps = contiguous_strides(allocation.shape)
        in_bytes = tuple(step * allocation.dtype.itemsize for step in steps)
        views.append(
            View(item, allocation.offset - placement.outputs_start, allocation.shape, allocation.dtype, steps, in_bytes)
        )
    return tuple(views)


class PendingResults(NamedTuple):
    """Results that were handed out: `finish` waits until they are there."""

    outputs: dict[str, Any]
    finish: Callable[[], None]


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

    def on_device(self, views: tuple[View, ...], memory: DeviceMemory, trim: Trim) -> PendingResults:
        """Results that lie in `memory`: there when `finish` returns, or in the order of the caller's stream."""
        arena = self._arena
        if memory.stream is not None:
            self._done.order(arena.stream.handle, memory.stream)
        address = memory.address
        outputs = {
            view.item.name: DeviceArray(
                memory, address + view.start, trim(view.item, view.shape), view.item.dtype, view.steps
            )
            for view in views
        }
        return PendingResults(outputs, arena.stream.synchronize if memory.stream is None else _nothing)

    def to_host(self, placement: Placement, views: tuple[View, ...], trim: Trim) -> PendingResults:
        """Results of the arena's block on the host, in one copy."""
        arena = self._arena
        memory: Any = self._results.lend(placement.outputs_bytes)
        if memory is None:
            memory = np.empty(placement.outputs_bytes, dtype=np.uint8)
            address = memory.ctypes.data
        else:
            address = ctypes.addressof(memory)
        arena.stream.copy(address, arena.block.address + placement.outputs_start, placement.outputs_bytes)
        outputs: dict[str, Array] = {}
        narrow: list[tuple[Array, Array]] = []
        for view in views:  # while the GPU works
            shape = trim(view.item, view.shape)
            values: Array = np.ndarray(shape, view.dtype, memory, view.start, view.steps_bytes)
            if view.item.dtype == "bfloat16":
                narrow.append((values, np.empty(shape, dtype=np.float32)))
                values = narrow[-1][1]
            outputs[view.item.name] = values

        def finish() -> None:
            arena.stream.synchronize()
            for bits, wide in narrow:
                widen_bfloat16(bits, wide)

        return PendingResults(outputs, finish)

    def close(self) -> None:
        """Waits for the results that were handed out last."""
        self._done.synchronize()
        self._done.close()


def _nothing() -> None:
    pass
