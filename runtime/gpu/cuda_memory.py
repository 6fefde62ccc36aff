# SPDX-License-Identifier: Apache-2.0
"""Memory of the GPU and page-locked memory of the host, over cuda-bindings."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from .cuda import Stream, check, driver, runtime

Bytes = npt.NDArray[np.uint8]

GROWTH = 1.25  # blocks grow a little further than asked, so that slowly growing requests do not map each time
SMALLEST_BYTES = 1 << 20
KEPT_RESULT_BYTES = 256 << 20  # freed results' memory that stays with the process


def open_block(device: int) -> FixedBlock | MovingBlock:
    """An empty block of the current GPU, at an address that never changes where the driver can do that."""
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    return FixedBlock(device) if check(driver.cuDeviceGetAttribute(attribute, device)) else MovingBlock()


class FixedBlock:
    """Device memory that grows in place: addresses are reserved once, and memory is mapped to them when it is needed.

    What holds an address of the block (a CUDA graph) stays right when the block grows. Source: CUDA driver API,
    virtual memory management.
    """

    keeps_address = True

    def __init__(self, device: int) -> None:
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties.location.id = device
        self._access = driver.CUmemAccessDesc()
        self._access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._access.location.id = device
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        option = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        self._step = int(check(driver.cuMemGetAllocationGranularity(self._properties, option)))
        _, total = check(runtime.cudaMemGetInfo())
        self._reserved = _round_up(int(total), self._step)
        self.address = int(check(driver.cuMemAddressReserve(self._reserved, 0, 0, 0)))
        self.size_bytes = 0

    def reserve(self, size_bytes: int) -> int:
        """Makes the block at least this large and keeps what it holds; returns its address."""
        if size_bytes > self.size_bytes:
            missing = max(SMALLEST_BYTES, int(size_bytes * GROWTH)) - self.size_bytes
            self._map(_round_up(missing, self._step))
        return self.address

    def _map(self, size_bytes: int) -> None:
        memory = check(driver.cuMemCreate(size_bytes, self._properties, 0))
        try:
            check(driver.cuMemMap(self.address + self.size_bytes, size_bytes, 0, memory, 0))
        finally:
            check(driver.cuMemRelease(memory))  # the mapping keeps the memory
        check(driver.cuMemSetAccess(self.address + self.size_bytes, size_bytes, [self._access], 1))
        self.size_bytes += size_bytes

    def close(self) -> None:
        """Gives memory and addresses back; harmless when called again."""
        if self.address:
            if self.size_bytes:
                check(driver.cuMemUnmap(self.address, self.size_bytes))
            check(driver.cuMemAddressFree(self.address, self._reserved))
            self.address = self.size_bytes = 0


class MovingBlock:
    """Device memory for drivers without virtual memory management: growing moves it and waits for the GPU."""

    keeps_address = False

    def __init__(self) -> None:
        self.address = self.size_bytes = 0

    def reserve(self, size_bytes: int) -> int:
        """Makes the block at least this large; what it held is lost when it grows. Returns its address."""
        if size_bytes > self.size_bytes:
            self.close()
            new_bytes = max(SMALLEST_BYTES, int(size_bytes * GROWTH))
            self.address = int(check(runtime.cudaMalloc(new_bytes)))
            self.size_bytes = new_bytes
        return self.address

    def close(self) -> None:
        """Frees the memory; harmless when called again."""
        if self.address:
            check(runtime.cudaFree(self.address))
            self.address = self.size_bytes = 0


class PinnedMemory:
    """Page-locked memory of the host: copies from and to it run at full speed and asynchronously."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.address = int(check(runtime.cudaMallocHost(max(1, size_bytes))))

    @property
    def bytes(self) -> Bytes:
        """All of it; the array must not be used after close()."""
        memory = (ctypes.c_byte * self.size_bytes).from_address(self.address)
        return np.frombuffer(memoryview(memory), dtype=np.uint8)

    def close(self) -> None:
        """Frees the memory; harmless when called again."""
        if self.address:
            check(runtime.cudaFreeHost(self.address))
            self.address = 0


class ResultPool:
    """Device memory for results, which outlive their run: allocated and freed in the order of streams.

    Freed memory stays in the pool for the next result.
    """

    def __init__(self, device: int) -> None:
        properties = runtime.cudaMemPoolProps()
        properties.allocType = runtime.cudaMemAllocationType.cudaMemAllocationTypePinned
        properties.location.type = runtime.cudaMemLocationType.cudaMemLocationTypeDevice
        properties.location.id = device
        self._pool: Any = check(runtime.cudaMemPoolCreate(properties))
        self._stream = Stream()  # as long as the process, and never captured
        keep = driver.cuuint64_t(KEPT_RESULT_BYTES)
        check(
            runtime.cudaMemPoolSetAttribute(self._pool, runtime.cudaMemPoolAttr.cudaMemPoolAttrReleaseThreshold, keep)
        )

    def allocate(self, size_bytes: int, stream: int) -> int:
        """Memory for work on this stream; returns its address."""
        return int(check(runtime.cudaMallocFromPoolAsync(max(1, size_bytes), self._pool, stream)))

    def free(self, address: int, stream: int | None) -> None:
        """Frees memory after what the stream holds now; None: nobody works with it any more."""
        check(runtime.cudaFreeAsync(address, self._stream.handle if stream is None else stream))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
