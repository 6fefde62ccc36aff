# SPDX-License-Identifier: Apache-2.0
"""Copies inputs into an arena's block: after the streams that produce them, those of the host in one copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ..arrays.device_arrays import LEGACY_STREAM, CallerStream, DeviceFeeds, DeviceInput
from ..rows import Array
from .arena import Arena
from .cuda import is_idle
from .engine import Allocation, Placement

DeviceInputs = Mapping[str, DeviceInput]

INPUT_ALIGNMENT = 256  # TensorRT asks for it, of every tensor's address


def device_inputs(feeds: DeviceFeeds) -> dict[str, DeviceInput]:
    """The inputs that are on the device."""
    return {name: feed for name, feed in feeds.items() if isinstance(feed, DeviceInput)}


def wait_for_inputs(arena: Arena, on_device: DeviceInputs, stream: CallerStream | None) -> None:
    """Orders the arena's stream after those that inputs on the device are made on, unless these are done already."""
    if not on_device and stream is None:
        return
    producers = {feed.stream for feed in on_device.values()}
    producers.add(LEGACY_STREAM if stream is None else stream.handle)
    for producer in producers:
        if producer is not None and not is_idle(producer):
            arena.crossing.order(producer, arena.stream.handle)


def in_place(on_device: DeviceInputs, allocations: Mapping[str, Allocation] | None = None) -> dict[str, int]:
    """Addresses of inputs that the engine can read where they are.

    Args:
        on_device: input name -> values.
        allocations: where larger inputs than these may be wanted, with filler at their end: their sizes.
    """
    return {
        name: feed.address
        for name, feed in on_device.items()
        if not feed.address % INPUT_ALIGNMENT
        and (feed.nbytes if allocations is None else feed.shape == allocations[name].shape)
    }


class StagingBuffers:
    """Where the inputs of one placement are staged: views of an arena's staging buffer, anew when that is replaced."""

    def __init__(self, arena: Arena, placement: Placement) -> None:
        self._arena = arena
        self._placement = placement
        self._staging: Array | None = None
        self._buffers: dict[str, tuple[Allocation, Array]] = {}

    def upload(self, feeds: DeviceFeeds, *, is_async: bool, left_out: Collection[str] = ()) -> None:
        """Copies inputs into their allocations: those of the host in one copy. The rest of an allocation becomes zeros.

        Args:
            feeds: input name -> values.
            is_async: nobody waits for the end of the run before the arena is borrowed again.
            left_out: inputs that the engine reads elsewhere.
        """
        arena, base = self._arena, self._arena.block.address
        buffers: Mapping[str, tuple[Allocation, Array]] | None = None
        start, end = self._placement.outputs_start, 0
        on_device = []
        for name, feed in feeds.items():
            if name in left_out:
                continue
            if isinstance(feed, DeviceInput):
                on_device.append((self._placement.inputs[name], feed))
                continue
            if buffers is None:
                buffers = self._reserve()
            allocation, buffer = buffers[name]
            size = feed.size
            if feed.dtype == buffer.dtype and feed.ndim == 1:
                buffer[:size] = feed
            else:
                np.copyto(buffer[:size], feed.reshape(-1), casting="same_kind")
            if size < buffer.size:
                buffer[size:] = 0
            start = min(start, allocation.offset)
            end = max(end, allocation.offset + allocation.size_bytes)
        if on_device and any(allocation.size_bytes > feed.nbytes for allocation, feed in on_device):
            arena.stream.zero(base, self._placement.outputs_start)  # one call for all of them
        if end > start:
            arena.upload_staging(start, end - start, base + start, is_async=is_async)
        for allocation, feed in on_device:
            if feed.nbytes:
                arena.stream.copy(base + allocation.offset, feed.address, feed.nbytes)

    def _reserve(self) -> Mapping[str, tuple[Allocation, Array]]:
        staging = self._arena.reserve_staging(self._placement.outputs_start)
        if staging is not self._staging:
            self._buffers = {
                name: (
                    allocation,
                    staging[allocation.offset : allocation.offset + allocation.size_bytes].view(allocation.dtype),
                )
                for name, allocation in self._placement.inputs.items()
            }
            self._staging = staging
        return self._buffers
