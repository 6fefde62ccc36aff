# SPDX-License-Identifier: Apache-2.0
"""Inputs on their way into an arena's block: in the order of who makes them, those of the host in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.device_arrays import LEGACY_STREAM, CallerStream, DeviceInput
from .arena import Arena
from .engine import Placement

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array | DeviceInput]


def wait_for_inputs(arena: Arena, feeds: Feeds, stream: CallerStream | None) -> None:
    """Orders the arena's stream behind those that inputs on the device are made on."""
    inputs = [feed for feed in feeds.values() if isinstance(feed, DeviceInput)]
    producers = {feed.stream for feed in inputs if feed.stream is not None}
    if stream is not None:
        producers.add(stream.handle)
    elif inputs:
        producers.add(LEGACY_STREAM)
    for producer in producers:
        arena.crossing.order(producer, arena.stream.handle)


def upload(arena: Arena, feeds: Feeds, placement: Placement) -> None:
    """Puts inputs into their places: those of the host in one copy. What is left of a place becomes zeros."""
    base = arena.block.address
    staged = [(placement.inputs[name], feed) for name, feed in feeds.items() if not isinstance(feed, DeviceInput)]
    if staged:
        start = min(place.offset for place, _ in staged)
        end = max(place.offset + place.size_bytes for place, _ in staged)
        arena.reserve_staging(end)
        for place, values in staged:
            room = arena.staging[place.offset : place.offset + place.size_bytes].view(place.dtype)
            np.copyto(room[: values.size], values.reshape(-1), casting="same_kind")
            room[values.size :] = 0
        if end > start:
            arena.upload_staging(start, end - start, base + start)
    for name, feed in feeds.items():
        if isinstance(feed, DeviceInput):
            place = placement.inputs[name]
            if feed.nbytes:
                arena.stream.copy(base + place.offset, feed.address, feed.nbytes)
            if place.size_bytes > feed.nbytes:
                arena.stream.zero(base + place.offset + feed.nbytes, place.size_bytes - feed.nbytes)
