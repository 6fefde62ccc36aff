# SPDX-License-Identifier: Apache-2.0
"""Arenas: the streams and the memory that all engines of a process share.

A run borrows an arena, puts inputs, outputs and activations into its block, and gives it back. Runs on one arena follow
each other on its stream, so one block serves any number of engines and shapes, and is as large as the largest run
needed. (TurboTransformers, arXiv 2010.05680, section 4.2, sizes memory for the lengths that come and shares it between
requests; here TensorRT plans the places inside one run, and padfree shares the block between runs.)
"""

from __future__ import annotations

import functools
import threading

from .cuda import Event, Stream, current_device
from .cuda_memory import PinnedMemory, ResultPool, open_block

SMALLEST_STAGING_BYTES = 64 << 10


class Arena:
    """One stream with its block of device memory and a page-locked staging buffer for inputs."""

    def __init__(self, index: int, device: int) -> None:
        self.index = index
        self.stream = Stream()
        self.block = open_block(device)
        self.crossing = Event()  # orders this stream with those of callers
        self._staged = Event()  # the last copy out of the staging buffer
        self._staging = PinnedMemory(SMALLEST_STAGING_BYTES)
        self.staging = self._staging.bytes

    def reserve_staging(self, size_bytes: int) -> None:
        """Makes `staging` at least this large, and waits until earlier copies out of it are done."""
        self._staged.synchronize()
        if size_bytes > self.staging.size:
            self._staging.close()
            self._staging = PinnedMemory(2 * size_bytes)
            self.staging = self._staging.bytes

    def upload_staging(self, start: int, size_bytes: int, address: int) -> None:
        """Copies a piece of the staging buffer to the device."""
        self.stream.copy(address, self._staging.address + start, size_bytes)
        self._staged.record(self.stream.handle)

    def close(self) -> None:
        """Waits for the stream and frees everything."""
        self.stream.synchronize()
        self.block.close()
        self._staging.close()
        self._staged.close()
        self.crossing.close()
        self.stream.close()


class ArenaPool:
    """The arenas of one GPU, made when they are first needed, closed when the last engine leaves."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._arenas: list[Arena] = []
        self._free: set[int] = set()
        self._changed = threading.Condition()
        self._members = 0
        self._results: ResultPool | None = None

    @property
    def results(self) -> ResultPool:
        """Where results on the device get their memory from."""
        with self._changed:
            if self._results is None:
                self._results = ResultPool(self._device)
            return self._results

    def block_bytes(self) -> list[int]:
        """How large every arena's block is now."""
        with self._changed:
            return [arena.block.size_bytes for arena in self._arenas]

    def join(self) -> None:
        """Says that one more engine uses the arenas."""
        with self._changed:
            self._members += 1

    def leave(self) -> None:
        """Says that an engine is closed; none of its runs may be under way."""
        with self._changed:
            self._members -= 1
            if self._members:
                return
            with current_device(self._device):
                for arena in self._arenas:
                    arena.close()
            self._arenas.clear()
            self._free.clear()

    def borrow(self, limit: int) -> Arena:
        """Takes the first free one of the first `limit` arenas; waits while all of them are in use."""
        with self._changed:
            while True:
                free = [index for index in self._free if index < limit]
                if free:
                    self._free.remove(min(free))
                    return self._arenas[min(free)]
                if len(self._arenas) < limit:
                    self._arenas.append(Arena(len(self._arenas), self._device))
                    return self._arenas[-1]
                self._changed.wait()

    def give_back(self, arena: Arena) -> None:
        """Ends a borrow; work on the arena's stream may still be under way."""
        with self._changed:
            self._free.add(arena.index)
            self._changed.notify_all()


@functools.cache
def arena_pool(device: int) -> ArenaPool:
    """The pool of a GPU: one a process."""
    return ArenaPool(device)
