# SPDX-License-Identifier: Apache-2.0
"""Memory that results are handed out in: lent page-locked memory on the host, a block of its own on the GPU."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.device_arrays import LEGACY_STREAM, CallerStream
from .arena import ArenaPool
from .cuda import Event, Stream, current_device, is_idle
from .cuda_memory import PinnedMemory

Bytes = npt.NDArray[np.uint8]

LENT_BYTES = 64 << 20
"""Page-locked memory that callers may hold as results at a time; beyond it, results are copied into ordinary memory."""


class HostResults:
    """Lends page-locked memory for results: the copy from the GPU is the only one, and memory comes back by itself.

    A caller who keeps results for long keeps at most LENT_BYTES of it.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._lock = threading.RLock()  # results may be freed, and so come back, at any point of this code
        self._free: dict[int, list[_Lendable]] = {}
        self._bytes = 0
        self._closed = False

    def lend(self, size_bytes: int) -> Any:
        """Memory of at least this size that comes back when no array uses it any more; None while too much is lent.

        An object with the buffer protocol, which arrays made of it keep alive, and its address (`ctypes.addressof`).
        """
        size_class = 1 << max(12, (size_bytes - 1).bit_length())
        with self._lock:
            free = self._free.get(size_class)
            if free:
                memory = free.pop()
            elif self._bytes + size_class > LENT_BYTES:
                return None
            else:
                memory = _Lendable(PinnedMemory(size_class), self._take_back)
                self._bytes += size_class
        return memory.lend()

    def _take_back(self, memory: _Lendable) -> None:
        with self._lock:
            if not self._closed:
                self._free.setdefault(memory.size_bytes, []).append(memory)
                return
        with current_device(self._device):
            memory.close()

    def close(self) -> None:
        """Frees what is not lent; the rest follows when its results are gone."""
        with self._lock:
            self._closed = True
            free = [memory for memories in self._free.values() for memory in memories]
            self._free.clear()
        for memory in free:
            memory.close()


class _Lendable:
    """Page-locked memory, and the type of the objects that are lent instead of it.

    Such an object is an array of ctypes with a `__del__`: that takes a third of the time of `weakref.finalize`.
    """

    def __init__(self, memory: PinnedMemory, take_back: Callable[[_Lendable], None]) -> None:
        def return_loan(_loan: Any, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
            if not is_ending():  # then CUDA may be gone, and the system takes everything back
                take_back(self)

        self.size_bytes = memory.size_bytes
        self._memory = memory
        self._loan: Any = type("Loan", (ctypes.c_byte * memory.size_bytes,), {"__del__": return_loan})

    def lend(self) -> Any:
        """The memory until the object that this returns is gone."""
        return self._loan.from_address(self._memory.address)

    def close(self) -> None:
        """Frees the memory."""
        self._memory.close()


class DeviceMemory:
    """One run's results on the GPU.

    Attributes:
        address: where they start.
        device: CUDA device number.
    """

    def __init__(
        self, pool: ArenaPool, device: int, size_bytes: int, *, made_on: int, stream: CallerStream | None
    ) -> None:
        self.device = device
        self._stream = stream
        self._results = pool.results
        self.address = self._results.allocate(size_bytes, made_on)

    @property
    def stream(self) -> int | None:
        """The caller's stream, in whose order the values are ready; None if they are ready already."""
        return None if self._stream is None else self._stream.handle

    def let_wait(self, consumer: int) -> None:
        """Makes a stream wait for the values."""
        if self.stream is None or self.stream == consumer:
            return
        with current_device(self.device):
            if is_idle(self.stream):
                return
            event = Event()
            event.order(self.stream, consumer)
            event.close()

    def read(self, address: int, size_bytes: int) -> Bytes:
        """A copy on the host, after waiting for the values."""
        with current_device(self.device):
            stream = Stream()
            try:
                self.let_wait(stream.handle)
                copy: npt.NDArray[Any] = np.empty(size_bytes, dtype=np.uint8)
                stream.copy(copy.ctypes.data, address, size_bytes)
                stream.synchronize()
                return copy
            finally:
                stream.close()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # What callers still have under way on their stream, or on the legacy default one, comes before the memory
        # serves somebody else. Where no memory was to be had there is no address.
        if hasattr(self, "address") and not is_ending():
            with current_device(self.device):
                last_user = LEGACY_STREAM if self._stream is None else self._stream.handle
                # An idle stream stays idle: a free on it would be work, which the next run's inputs wait for.
                self._results.free(self.address, None if is_idle(last_user) else last_user)
