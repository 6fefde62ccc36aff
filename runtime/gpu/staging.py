# SPDX-License-Identifier: Apache-2.0
"""Inputs on their way into an arena's block: in the order of who makes them, those of the host in one copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.device_arrays import LEGACY_STREAM, CallerStream, DeviceInput
from .arena import Arena
from .cuda import is_idle
from .engine import Place, Placement

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array | DeviceInput]

INPUT_ALIGNMENT = 256  # TensorRT asks for it, of every tensor's address


def wait_for_inputs(arena: Arena, feeds: Feeds, stream: CallerStream | None) -> None:
    """Orders the arena's stream behind those that inputs on the device are made on, unless these are done already."""
    producers = {feed.stream for feed in feeds.values() if isinstance(feed, DeviceInput)}
    if not producers and stream is None:
        return
    producers.add(LEGACY_STREAM if stream is None else stream.handle)
    for producer in producers:
        if producer is not None and not is_idle(producer):
            arena.crossing.order(producer, arena.stream.handle)


def in_place(feeds: Feeds, places: Mapping[str, Place] | None = None) -> dict[str, int]:
    """Addresses of inputs on the device that the engine can read where they are.

    Args:
        feeds: input name -> values.
        places: where larger inputs than these may be wanted, with filler at their end: their sizes.
    """
    return {
        name: feed.address
        for name, feed in feeds.items()
        if isinstance(feed, DeviceInput)
        and not feed.address % INPUT_ALIGNMENT
        and (feed.nbytes if places is None else feed.shape == places[name].shape)
    }


class Rooms:
    """Where the inputs of one placement are staged: views of an arena's staging buffer, made when it is a new one."""

    def __init__(self, arena: Arena, placement: Placement) -> None:
        self._arena = arena
        self._placement = placement
        self._staging: Array | None = None
        self._rooms: dict[str, tuple[Place, Array]] = {}

    def upload(self, feeds: Feeds, *, stays: bool, but: Collection[str] = ()) -> None:
        """Puts inputs into their places: those of the host in one copy. What is left of a place becomes zeros.

        Args:
            feeds: input name -> values.
            stays: nobody waits for the end of the run before the arena is borrowed again.
            but: inputs that the engine reads elsewhere.
        """
        arena, base = self._arena, self._arena.block.address
        given = [(self._placement.inputs[name], feed) for name, feed in feeds.items() if name not in but]
        on_device = [(place, feed) for place, feed in given if isinstance(feed, DeviceInput)]
        if any(place.size_bytes > feed.nbytes for place, feed in on_device):
            arena.stream.zero(base, self._placement.outputs_start)
        self._upload_host({name: feed for name, feed in feeds.items() if not isinstance(feed, DeviceInput)}, stays)
        for place, feed in on_device:
            if feed.nbytes:
                arena.stream.copy(base + place.offset, feed.address, feed.nbytes)

    def _upload_host(self, feeds: Mapping[str, Array], stays: bool) -> None:
        if not feeds:
            return
        rooms = self._reserved()
        start, end = self._placement.outputs_start, 0
        for name, feed in feeds.items():
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
            self._arena.upload_staging(start, end - start, self._arena.block.address + start, stays=stays)

    def _reserved(self) -> Mapping[str, tuple[Place, Array]]:
        staging = self._arena.reserve_staging(self._placement.outputs_start)
        if staging is not self._staging:
            self._rooms = {
                name: (place, staging[place.offset : place.offset + place.size_bytes].view(place.dtype))
                for name, place in self._placement.inputs.items()
            }
            self._staging = staging
        return self._rooms
