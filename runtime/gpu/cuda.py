# SPDX-License-Identifier: Apache-2.0
"""Devices, streams, events and graphs: the few CUDA calls that padfree needs, checked, over cuda-bindings."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from padfree.contract.installation import install_command

from ..errors import SessionError
from .device import Device, check_compute_capability

try:
    from cuda.bindings import driver as driver
    from cuda.bindings import runtime as runtime
except (ImportError, OSError) as _error:
    raise SessionError(
        f"cuda-bindings cannot be imported ({_error}); install it with: {install_command('trt')} (or pip install "
        "cuda-bindings)"
    ) from _error


def check(result: Any) -> Any:
    """Unpacks a result tuple of the runtime or the driver API; raises SessionError for anything but success."""
    status = result[0]
    if status:
        of_driver = isinstance(status, driver.CUresult)
        _, name = driver.cuGetErrorName(status) if of_driver else runtime.cudaGetErrorName(status)
        _, text = driver.cuGetErrorString(status) if of_driver else runtime.cudaGetErrorString(status)
        raise SessionError(f"CUDA failed with {_text(name)}: {_text(text)}; run `padfree doctor` to check this machine")
    return result[1] if len(result) == 2 else result[1:]


def driver_version() -> int:
    """The newest CUDA version that the driver knows (13000 for 13.0), 0 without a driver."""
    return int(check(runtime.cudaDriverGetVersion()))


def device_count() -> int:
    """How many GPUs CUDA can use here; 0 without a driver or a GPU."""
    status, count = runtime.cudaGetDeviceCount()
    return int(count) if status == runtime.cudaError_t.cudaSuccess else 0


def open_device(index: int) -> Device:
    """Makes a GPU current and returns it.

    Raises:
        SessionError: no GPU, no such GPU, or one older than compute capability 8.0.
    """
    status, count = runtime.cudaGetDeviceCount()
    if status != runtime.cudaError_t.cudaSuccess or not count:
        _, text = runtime.cudaGetErrorString(status)
        raise SessionError(
            f"no usable GPU on this machine (CUDA says: {_text(text)}); engines need an NVIDIA GPU of compute "
            "capability 8.0 or newer; run the rewritten .onnx file instead, or check the driver with nvidia-smi"
        )
    if not 0 <= index < count:
        raise SessionError(f"no GPU number {index}, this machine has 0..{count - 1}; pass one of those as the device")
    properties = check(runtime.cudaGetDeviceProperties(index))
    device = Device(index, _text(properties.name), int(properties.major), int(properties.minor))
    check_compute_capability(device)
    check(runtime.cudaSetDevice(index))
    return device


class CurrentDevice:
    """What current_device gives: a class and no generator, because every run enters it."""

    __slots__ = ("_before", "_index")

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        self._before = check(runtime.cudaGetDevice())
        if self._before != self._index:
            check(runtime.cudaSetDevice(self._index))

    def __exit__(self, *_error: object) -> None:
        if self._before != self._index:
            # Unchecked: where that GPU has broken down meanwhile, its own users learn it, not who used another one.
            runtime.cudaSetDevice(self._before)


def current_device(index: int) -> CurrentDevice:
    """Makes a GPU this thread's current one, and gives the thread back the one that it had."""
    return CurrentDevice(index)


@contextmanager
def kept_device() -> Iterator[None]:
    """Whatever happens inside, this thread has the current GPU afterwards that it had before."""
    status, before = runtime.cudaGetDevice()
    try:
        yield
    finally:
        if status == runtime.cudaError_t.cudaSuccess:  # without a driver or a GPU there is nothing to keep
            runtime.cudaSetDevice(before)


def device_of(address: int) -> int | None:
    """The GPU whose memory an address is in; None for memory of the host."""
    attributes = check(runtime.cudaPointerGetAttributes(address))
    kinds = (runtime.cudaMemoryType.cudaMemoryTypeDevice, runtime.cudaMemoryType.cudaMemoryTypeManaged)
    return int(attributes.device) if attributes.type in kinds else None


def free_bytes() -> int:
    """Free memory of the current GPU."""
    free, _ = check(runtime.cudaMemGetInfo())
    return int(free)


def free_bytes_of(index: int) -> int:
    """Free memory of a GPU, whichever one is current."""
    with current_device(index):
        return free_bytes()


def is_idle(stream: int) -> bool:
    """Whether a stream's work is all done: then nothing has to wait for it, and waiting costs more than asking.

    The legacy default stream's work is that of all blocking streams too ("standard default stream semantics"). Asked
    through the driver, which keeps no last error; where it cannot say, as in a thread without a context, it says no.
    """
    return not driver.cuStreamQuery(stream)[0]


class Event:
    """A point in a stream's work."""

    def __init__(self) -> None:
        self._handle: Any = check(runtime.cudaEventCreateWithFlags(runtime.cudaEventDisableTiming))

    def record(self, stream: int) -> None:
        """Marks what the stream holds now."""
        check(runtime.cudaEventRecord(self._handle, stream))

    def order(self, first: int, then: int) -> None:
        """Work put on stream `then` from now on waits for what stream `first` holds now."""
        self.record(first)
        check(runtime.cudaStreamWaitEvent(then, self._handle, 0))

    def synchronize(self) -> None:
        """Waits until the marked work is done; returns at once when nothing was marked."""
        check(runtime.cudaEventSynchronize(self._handle))

    def close(self) -> None:
        """Destroys the event; harmless when called again."""
        if self._handle is not None:
            check(runtime.cudaEventDestroy(self._handle))
            self._handle = None


class Stream:
    """A CUDA stream of its own, and what is done on it. It does not wait for the legacy default stream."""

    def __init__(self) -> None:
        self._stream: Any = check(runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking))
        self.handle = int(self._stream)

    def synchronize(self) -> None:
        """Waits for all work on the stream."""
        check(runtime.cudaStreamSynchronize(self.handle))

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Copies memory, of the host (page-locked) or the device; done after synchronize()."""
        kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
        check(runtime.cudaMemcpyAsync(to, source, size_bytes, kind, self.handle))

    def zero(self, address: int, size_bytes: int) -> None:
        """Sets device memory to zeros."""
        check(runtime.cudaMemsetAsync(address, 0, size_bytes, self.handle))

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """Records what `enqueue` puts on this stream as a CUDA graph, ready to launch.

        The garbage collector rests meanwhile: what it frees (events, memory of other libraries) breaks a capture.

        Raises:
            SessionError: the work cannot be captured; the stream works on as before.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            check(runtime.cudaStreamBeginCapture(self.handle, mode))
            try:
                enqueue()
            except BaseException:
                runtime.cudaStreamEndCapture(self.handle)  # leaves capture mode; the graph is broken anyway
                runtime.cudaGetLastError()  # or the next launch would report this error as its own
                raise
            try:
                return Graph(check(runtime.cudaStreamEndCapture(self.handle)), self.handle)
            except SessionError:
                runtime.cudaGetLastError()
                raise
        finally:
            if collects:
                gc.enable()

    def time_ms(self, work: Callable[[], None], iterations: int) -> list[float]:
        """Runs `work`, which enqueues on this stream, and returns each run's time in ms, measured by events."""
        events = [(check(runtime.cudaEventCreate()), check(runtime.cudaEventCreate())) for _ in range(iterations)]
        try:
            for start, stop in events:
                check(runtime.cudaEventRecord(start, self.handle))
                work()
                check(runtime.cudaEventRecord(stop, self.handle))
            self.synchronize()
            return [float(check(runtime.cudaEventElapsedTime(start, stop))) for start, stop in events]
        finally:
            for pair in events:
                for event in pair:
                    check(runtime.cudaEventDestroy(event))

    def close(self) -> None:
        """Destroys the stream; harmless when called again."""
        if self._stream is not None:
            check(runtime.cudaStreamDestroy(self._stream))
            self._stream = None


class Graph:
    """An instantiated CUDA graph on the stream that it was captured on."""

    def __init__(self, graph: Any, stream: int) -> None:
        self._stream = stream
        try:
            self._executable: Any = check(runtime.cudaGraphInstantiate(graph, 0))
        finally:
            check(runtime.cudaGraphDestroy(graph))

    def launch(self) -> None:
        """Enqueues the whole graph."""
        check(runtime.cudaGraphLaunch(self._executable, self._stream))

    def close(self) -> None:
        """Destroys the graph; harmless when called again."""
        if self._executable is not None:
            check(runtime.cudaGraphExecDestroy(self._executable))
            self._executable = None


def _text(value: Any) -> str:
    return value.decode(errors="replace").rstrip("\0") if isinstance(value, bytes) else str(value)
