# SPDX-License-Identifier: Apache-2.0
"""Inputs on their way into an arena's block: in the order of who makes them, those of the host in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.device_arrays import LEGACY_STREAM, CallerStream, DeviceInput
from .arena import Arena
from .engine import Place, Placement

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array | DeviceInput]


def wait_for_inputs(arena: Arena, feeds: Feeds, stream: CallerStream | None) -> None:
    """Orders the arena's stream behind those that inputs on the device are made on."""
    inputs = [feed for feed in feeds.values() if isinstance(feed, DeviceInput)]
    if not inputs and stream is None:
        return
    producers = {feed.stream for feed in inputs if feed.stream is not None}
    producers.add(LEGACY_STREAM if stream is None else stream.handle)
    for producer in producers:
        arena.crossing.order(producer, arena.stream.handle)


class Rooms:
    """Where the inputs of one placement are staged: views of an arena's staging buffer, made when it is a new one."""

    def __init__(self, arena: Arena, placement: Placement) -> None:
        self._arena = arena
        self._placement = placement
        self._staging: Array | None = None
        self._rooms: dict[str, tuple[Place, Array]] = {}

    def upload(self, feeds: Feeds, *, stays: bool) -> None:
        """Puts inputs into their places: those of the host in one copy. What is left of a place becomes zeros.

        Args:
            feeds: input name -> values.
            stays: nobody waits for the end of the run before the arena is borrowed again.
        """
        arena, base = self._arena, self._arena.block.address
        rooms = self._reserved()
        start, end = self._placement.outputs_start, 0
        on_device = []
        for name, feed in feeds.items():
            if isinstance(feed, DeviceInput):
                on_device.append((self._placement.inputs[name], feed))
                continue
            place, room = rooms[name]
            size = feed.size
            if feed.dtype == room.dtype and feed.ndim == 1:
                room[:size] = feed
            else:
                np.copyto(room[:size], feed.reshape(-1), casting="same_kind")
            if size < room.size:
                room[size:] = 0
            start = min(start, place.offset)
            end = max(end, place.offset + place.size_bytes)
        if end > start:
            arena.upload_staging(start, end - start, base + start, stays=stays)
        for place, given in on_device:
            size_bytes = given.nbytes
            if size_bytes:
                arena.stream.copy(base + place.offset, given.address, size_bytes)
            if place.size_bytes > size_bytes:
                arena.stream.zero(base + place.offset + size_bytes, place.size_bytes - size_bytes)

    def _reserved(self) -> Mapping[str, tuple[Place, Array]]:
        staging = self._arena.reserve_staging(self._placement.outputs_start)
        if staging is not self._staging:
            self._rooms = {
                name: (place, staging[place.offset : place.offset + place.size_bytes].view(place.dtype))
                for name, place in self._placement.inputs.items()
            }
            self._staging = staging
        return self._rooms
