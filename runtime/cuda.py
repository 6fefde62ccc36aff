# SPDX-License-Identifier: Apache-2.0
"""The few CUDA runtime calls that padfree needs, checked, over cuda-bindings."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .device import Device, check_compute_capability
from .errors import SessionError

try:
    from cuda.bindings import runtime as _cuda
except (ImportError, OSError) as _error:
    raise SessionError(
        f"cuda-bindings cannot be imported ({_error}); install it with: pip install cuda-bindings"
    ) from _error

GROWTH = 1.25  # buffers grow a little further than asked, so that slowly growing requests do not reallocate each time


def check(result: Any) -> Any:
    """Unpacks a cuda-bindings result tuple; raises SessionError for anything but success."""
    status, *values = result
    if status != _cuda.cudaError_t.cudaSuccess:
        _, name = _cuda.cudaGetErrorName(status)
        _, text = _cuda.cudaGetErrorString(status)
        raise SessionError(f"CUDA failed with {_text(name)}: {_text(text)}; run `padfree doctor` to check this machine")
    return values[0] if len(values) == 1 else tuple(values)


def driver_version() -> int:
    """The newest CUDA version that the driver knows (13000 for 13.0), 0 without a driver."""
    return int(check(_cuda.cudaDriverGetVersion()))


def device_count() -> int:
    """How many GPUs CUDA can use here; 0 without a driver or a GPU."""
    status, count = _cuda.cudaGetDeviceCount()
    return int(count) if status == _cuda.cudaError_t.cudaSuccess else 0


def open_device(index: int) -> Device:
    """Makes a GPU current and returns it.

    Raises:
        SessionError: no GPU, no such GPU, or one older than compute capability 8.0.
    """
    status, count = _cuda.cudaGetDeviceCount()
    if status != _cuda.cudaError_t.cudaSuccess or not count:
        _, text = _cuda.cudaGetErrorString(status)
        raise SessionError(
            f"no usable GPU on this machine (CUDA says: {_text(text)}); engines need an NVIDIA GPU of compute "
            "capability 8.0 or newer; run the rewritten .onnx file instead, or check the driver with nvidia-smi"
        )
    if not 0 <= index < count:
        raise SessionError(f"no GPU number {index}, this machine has 0..{count - 1}; pass one of those as the device")
    properties = check(_cuda.cudaGetDeviceProperties(index))
    device = Device(index, _text(properties.name), int(properties.major), int(properties.minor))
    check_compute_capability(device)
    make_current(index)
    return device


def make_current(index: int) -> None:
    """Makes a GPU the current one of this thread."""
    check(_cuda.cudaSetDevice(index))


class Stream:
    """A CUDA stream, and what is done on it."""

    def __init__(self) -> None:
        self._handle: Any = check(_cuda.cudaStreamCreateWithFlags(_cuda.cudaStreamNonBlocking))

    @property
    def handle(self) -> int:
        """The address that TensorRT takes."""
        return int(self._handle)

    def synchronize(self) -> None:
        """Waits for all work on the stream."""
        check(_cuda.cudaStreamSynchronize(self._handle))

    def upload(self, array: npt.NDArray[Any], address: int) -> None:
        """Copies a contiguous host array to the device; host memory may be reused after synchronize()."""
        kind = _cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        check(_cuda.cudaMemcpyAsync(address, array.ctypes.data, array.nbytes, kind, self._handle))

    def download(self, address: int, array: npt.NDArray[Any]) -> None:
        """Copies device memory to a contiguous host array; valid after synchronize()."""
        kind = _cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        check(_cuda.cudaMemcpyAsync(array.ctypes.data, address, array.nbytes, kind, self._handle))

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """Records what `enqueue` puts on this stream as a CUDA graph, ready to launch."""
        mode = _cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        check(_cuda.cudaStreamBeginCapture(self._handle, mode))
        try:
            enqueue()
        except BaseException:
            _cuda.cudaStreamEndCapture(self._handle)  # leaves capture mode; the graph is broken anyway
            raise
        return Graph(check(_cuda.cudaStreamEndCapture(self._handle)), self._handle)

    def time_ms(self, work: Callable[[], None], iterations: int) -> list[float]:
        """Runs `work`, which enqueues on this stream, and returns each run's time in ms, measured by events."""
        events = [(check(_cuda.cudaEventCreate()), check(_cuda.cudaEventCreate())) for _ in range(iterations)]
        try:
            for start, stop in events:
                check(_cuda.cudaEventRecord(start, self._handle))
                work()
                check(_cuda.cudaEventRecord(stop, self._handle))
            self.synchronize()
            return [float(check(_cuda.cudaEventElapsedTime(start, stop))) for start, stop in events]
        finally:
            for pair in events:
                for event in pair:
                    check(_cuda.cudaEventDestroy(event))

    def close(self) -> None:
        """Destroys the stream; harmless when called again."""
        if self._handle is not None:
            check(_cuda.cudaStreamDestroy(self._handle))
            self._handle = None


class Graph:
    """An instantiated CUDA graph on the stream that it was captured on."""

    def __init__(self, graph: Any, stream: Any) -> None:
        self._stream = stream
        self._executable: Any = check(_cuda.cudaGraphInstantiate(graph, 0))
        check(_cuda.cudaGraphDestroy(graph))

    def launch(self) -> None:
        """Enqueues the whole graph."""
        check(_cuda.cudaGraphLaunch(self._executable, self._stream))

    def close(self) -> None:
        """Destroys the graph; harmless when called again."""
        if self._executable is not None:
            check(_cuda.cudaGraphExecDestroy(self._executable))
            self._executable = None


class DeviceBuffer:
    """Device memory that grows and never shrinks."""

    def __init__(self) -> None:
        self._address = 0
        self._bytes = 0

    def reserve(self, size_bytes: int) -> int:
        """At least `size_bytes` (and never an empty buffer); returns the device address. Contents are not kept."""
        if size_bytes > self._bytes or not self._address:
            self.close()
            grown = max(256, int(size_bytes * GROWTH))
            self._address = int(check(_cuda.cudaMalloc(grown)))
            self._bytes = grown
        return self._address

    def close(self) -> None:
        """Frees the memory; harmless when called again."""
        if self._address:
            check(_cuda.cudaFree(self._address))
            self._address = self._bytes = 0


class PinnedBuffer:
    """Page-locked host memory that grows and never shrinks: copies from it run at full speed and asynchronously."""

    def __init__(self) -> None:
        self._address = 0
        self._bytes = 0

    def view(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Lays an array of this shape over the buffer; valid until the buffer is used or closed again."""
        count = int(np.prod(shape, dtype=np.int64))
        size_bytes = count * np.dtype(dtype).itemsize
        if size_bytes > self._bytes or not self._address:
            self.close()
            grown = max(256, int(size_bytes * GROWTH))
            self._address = int(check(_cuda.cudaMallocHost(grown)))
            self._bytes = grown
        memory = (ctypes.c_byte * self._bytes).from_address(self._address)
        return np.frombuffer(memoryview(memory), dtype=np.dtype(dtype), count=count).reshape(shape)

    def close(self) -> None:
        """Frees the memory; harmless when called again."""
        if self._address:
            check(_cuda.cudaFreeHost(self._address))
            self._address = self._bytes = 0


def _text(value: Any) -> str:
    return value.decode(errors="replace").rstrip("\0") if isinstance(value, bytes) else str(value)
