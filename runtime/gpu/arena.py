# SPDX-License-Identifier: Apache-2.0
"""Arenas: the streams and the memory that all engines of a process share.

A run borrows an arena, puts inputs, outputs and activations into its block, and gives it back. Runs on one arena follow
each other on its stream, so one block serves any number of engines and shapes, and is as large as the largest run
needed. (TurboTransformers, arXiv 2010.05680, section 4.2, sizes memory for the lengths that come and shares it between
requests; here TensorRT plans the allocations inside one run, and padfree shares the block between runs.)
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from .cuda import Event, Stream, current_device
from .cuda_memory import PinnedMemory, ResultPool, open_block

if TYPE_CHECKING:
    from .cuda_memory import Bytes

SMALLEST_STAGING_BYTES = 64 << 10


class Arena:
    """One stream with its block of device memory and a page-locked staging buffer for inputs."""

    def __init__(self, index: int, device: int) -> None:
        self.index = index
        self.stream = Stream()
        self.block = open_block(device)
        self.crossing = Event()  # orders this stream with those of callers
        self._staging_done = Event()  # the last copy out of the staging buffer that nobody waited for
        self._copying = False
        self._staging = PinnedMemory(SMALLEST_STAGING_BYTES)
        self._bytes = self._staging.bytes

    def reserve_staging(self, size_bytes: int) -> Bytes:
        """The staging buffer, at least this large, when earlier copies out of it are done."""
        if self._copying:
            self._staging_done.synchronize()
            self._copying = False
        if size_bytes > self._bytes.size:
            self._staging.close()
            self._staging = PinnedMemory(2 * size_bytes)
            self._bytes = self._staging.bytes
        return self._bytes

    def upload_staging(self, start: int, size_bytes: int, address: int, *, is_async: bool) -> None:
        """Copies a piece of the staging buffer to the device.

        `is_async`: nobody waits for the end of the run before the arena is borrowed again.
        """
        self.stream.copy(address, self._staging.address + start, size_bytes)
        if is_async:
            self._staging_done.record(self.stream.handle)
            self._copying = True

    def close(self) -> None:
        """Waits for the stream and frees everything."""
        self.stream.synchronize()
        self.block.close()
        self._staging.close()
        self._staging_done.close()
        self.crossing.close()
        self.stream.close()


class ArenaPool:
    """The arenas of one GPU, made when they are first needed, closed when the last engine leaves."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._arenas: list[Arena] = []
        self._free: set[int] = set()
        self._lock = threading.RLock()  # taken by itself: a condition's own `with` takes two calls of Python more
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._members = 0
        self._results: ResultPool | None = None

    @property
    def results(self) -> ResultPool:
        """Where results on the device get their memory from."""
        with self._lock:
            if self._results is None:
                self._results = ResultPool(self._device)
            return self._results

    def block_bytes(self) -> list[int]:
        """How large every arena's block is now."""
        with self._lock:
            return [arena.block.size_bytes for arena in self._arenas]

    def join(self) -> None:
        """Says that one more engine uses the arenas."""
        with self._lock:
            self._members += 1

    def leave(self) -> None:
        """Says that an engine is closed; none of its runs may be under way."""
        with self._lock:
            self._members -= 1
            if self._members:
                return
            with current_device(self._device):
                for arena in self._arenas:
                    arena.close()
            self._arenas.clear()
            self._free.clear()

    def borrow(self, limit: int, *, patient: bool) -> Arena | None:
        """Takes the first free one of the first `limit` arenas.

        While all of them are in use it waits, or gives None where it is not to be patient.
        """
        with self._lock:
            while True:
                for index in range(min(limit, len(self._arenas))):
                    if index in self._free:
                        self._free.remove(index)
                        return self._arenas[index]
                if len(self._arenas) < limit:
                    self._arenas.append(Arena(len(self._arenas), self._device))
                    return self._arenas[-1]
                if not patient:
                    return None
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1

    def give_back(self, arena: Arena) -> None:
        """Ends a borrow; work on the arena's stream may still be under way."""
        with self._lock:
            self._free.add(arena.index)
            if self._waiting:
                self._changed.notify_all()


@functools.cache
def arena_pool(device: int) -> ArenaPool:
    """The pool of a GPU: one per process."""
    return ArenaPool(device)
