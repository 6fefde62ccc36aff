# SPDX-License-Identifier: Apache-2.0
"""A GPU and a TensorRT that live on the host, with the rules of the real ones.

Streams run their work immediately. A block grows in place. Capturing records calls without running them, and forbids
what real capturing forbids. A context needs shapes, addresses and memory of its own before it runs; it reads inputs and
writes outputs at those addresses, and fills its scratch memory with garbage. Streams, memory and contexts belong to the
GPU that was the thread's current one when they were made, and work only on that one.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from padfree.runtime import SessionError
from padfree.runtime.gpu.device import Device

GPU = Device(0, "NVIDIA H200", 9, 0)
INPUTS = ("input_ids", "token_type_ids", "seq_lens")
OUTPUTS = ("hidden", "lengths")
TYPES: dict[str, Any] = {**dict.fromkeys(INPUTS, np.int32), **dict.fromkeys(OUTPUTS, np.float32)}
RESERVED_BYTES = 1 << 22
MAX_TOKENS = 100


class Machine:
    """The machine's state for tests: how often things happened, and switches that make them fail."""

    def __init__(self) -> None:
        self.launches = self.enqueues = self.captures = self.copies = self.contexts = 0
        self.open_graphs = self.open_streams = self.open_blocks = self.open_pinned = 0
        self.waits: list[tuple[int, int]] = []
        self.freed: list[int | None] = []
        self.busy: set[int] = set()  # streams with work that is not done
        self.ids: list[int] = []
        self.results: dict[int, Any] = {}
        self.capture_fails = self.run_fails = False
        self.free_bytes = 1 << 40
        self.bytes_a_capture = 0
        self.keeps_address = True
        self.running = threading.Semaphore(0)
        self.gate: threading.Event | None = None
        self.devices = 3
        self.broken: set[int] = set()  # GPUs on which every run fails
        self.runs_on: list[int] = []  # the GPU of every run
        self.thread = threading.local()

    @property
    def current(self) -> int:
        """The calling thread's GPU."""
        return getattr(self.thread, "device", 0)


def array_at(address: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    """The memory at an address, as an array."""
    size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
    return np.frombuffer((ctypes.c_byte * size).from_address(address), dtype=dtype, count=math.prod(shape)).reshape(
        shape
    )


def cuda_module(machine: Machine) -> Any:
    """A stand-in for padfree.runtime.gpu.cuda."""
    handles = iter(range(100, 10**6))
    devices: dict[int, int] = {}  # stream -> its GPU

    class Event:
        def record(self, stream: int) -> None:
            assert devices.get(stream, machine.current) == machine.current

        def order(self, first: int, then: int) -> None:
            machine.waits.append((first, then))

        def synchronize(self) -> None:
            """Does nothing, as all work is done immediately."""

        def close(self) -> None:
            """Does nothing, as there is nothing to free."""

    class Graph:
        def __init__(self, work: list[Callable[[], None]]) -> None:
            self.work: list[Callable[[], None]] | None = work
            machine.open_graphs += 1

        def launch(self) -> None:
            assert self.work is not None, "launched after close"
            machine.launches += 1
            for step in self.work:
                step()

        def close(self) -> None:
            if self.work is not None:
                machine.open_graphs -= 1
            self.work = None

    class Stream:
        recordings: ClassVar[dict[int, list[Callable[[], None]]]] = {}

        def __init__(self) -> None:
            self.handle = next(handles)
            self.device = devices[self.handle] = machine.current
            machine.open_streams += 1

        def synchronize(self) -> None:
            assert self.handle not in self.recordings, "a capture forbids synchronisation"

        def copy(self, to: int, source: int, size_bytes: int) -> None:
            machine.copies += 1
            ctypes.memmove(to, source, size_bytes)

        def zero(self, address: int, size_bytes: int) -> None:
            ctypes.memset(address, 0, size_bytes)

        def capture(self, enqueue: Callable[[], None]) -> Any:
            machine.captures += 1
            machine.free_bytes -= machine.bytes_a_capture
            if machine.capture_fails:
                raise SessionError("CUDA failed with cudaErrorStreamCaptureInvalidated")
            self.recordings[self.handle] = []
            try:
                enqueue()
            finally:
                work = self.recordings.pop(self.handle)
            return Graph(work)

        def time_ms(self, work: Callable[[], None], iterations: int) -> list[float]:
            for _ in range(iterations):
                work()
            return [1.0] * iterations

        def close(self) -> None:
            machine.open_streams -= 1

    @contextmanager
    def current_device(index: int) -> Iterator[None]:
        with kept_device():
            machine.thread.device = index
            yield

    @contextmanager
    def kept_device() -> Iterator[None]:
        before = machine.current
        try:
            yield
        finally:
            machine.thread.device = before

    def open_device(index: int) -> Device:
        machine.thread.device = index
        return dataclasses.replace(GPU, index=index)

    return SimpleNamespace(
        Event=Event,
        Graph=Graph,
        Stream=Stream,
        current_device=current_device,
        kept_device=kept_device,
        device_count=lambda: machine.devices,
        open_device=open_device,
        device_of=lambda _address: GPU.index,
        is_idle=lambda stream: stream not in machine.busy,
        free_bytes=lambda: machine.free_bytes,
    )


def memory_module(machine: Machine) -> Any:
    """A stand-in for padfree.runtime.gpu.cuda_memory; memory is poisoned when it is allocated."""

    class Block:
        def __init__(self) -> None:
            self.keeps_address = machine.keeps_address
            self.memory = ctypes.create_string_buffer(b"\xff" * RESERVED_BYTES)
            self.address = ctypes.addressof(self.memory)
            self.size_bytes = 0
            machine.open_blocks += 1

        def reserve(self, size_bytes: int) -> int:
            assert size_bytes <= RESERVED_BYTES
            self.size_bytes = max(self.size_bytes, size_bytes)
            return self.address

        def close(self) -> None:
            machine.open_blocks -= 1

    class PinnedMemory:
        def __init__(self, size_bytes: int) -> None:
            self.size_bytes = size_bytes
            self.bytes = np.full(max(1, size_bytes), 0xFF, dtype=np.uint8)
            self.address = self.bytes.ctypes.data
            machine.open_pinned += 1

        def close(self) -> None:
            machine.open_pinned -= 1

    class ResultPool:
        def __init__(self, _device: int) -> None:
            """Needs no device: memory of results is kept by its address."""

        def allocate(self, size_bytes: int, stream: int) -> int:
            assert stream
            memory = ctypes.create_string_buffer(b"\xff" * max(1, size_bytes))
            machine.results[ctypes.addressof(memory)] = memory
            return ctypes.addressof(memory)

        def free(self, address: int, stream: int | None) -> None:
            del machine.results[address]
            machine.freed.append(stream)

    return SimpleNamespace(open_block=lambda _device: Block(), PinnedMemory=PinnedMemory, ResultPool=ResultPool)


class Context:
    """Runs the packed model: hidden = (id, type), lengths = seq_lens."""

    def __init__(self, machine: Machine, streams: Any) -> None:
        self.machine, self.streams = machine, streams
        self.device = machine.current
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.memory = (0, 0)
        self.profiler: Any = None
        machine.contexts += 1
        machine.free_bytes -= 1000

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return 1 <= shape[0] <= MAX_TOKENS

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return address != 0

    def infer_shapes(self) -> list[str]:
        return sorted(set(INPUTS) - set(self.shapes))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (*self.shapes["input_ids"], 2) if name == "hidden" else (*self.shapes["seq_lens"], 1)

    def update_device_memory_size_for_shapes(self) -> int:
        return 64 * self.shapes["input_ids"][0]

    def set_device_memory(self, address: int, size_bytes: int) -> None:
        assert size_bytes >= self.update_device_memory_size_for_shapes()
        self.memory = (address, size_bytes)

    def execute_async_v3(self, stream: int) -> bool:
        assert self.machine.current == self.device
        self.machine.enqueues += 1
        self.machine.runs_on.append(self.device)
        if self.device in self.machine.broken:
            return False
        shapes, addresses, memory = dict(self.shapes), dict(self.addresses), self.memory
        if stream in self.streams:
            self.streams[stream].append(lambda: self.compute(shapes, addresses, memory))
        else:
            self.compute(shapes, addresses, memory)
        return not self.machine.run_fails

    def compute(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int], memory: tuple[int, int]) -> None:
        if self.machine.gate is not None:
            self.machine.running.release()
            assert self.machine.gate.wait(10)
        ids, types, lens = (array_at(addresses[name], np.int32, shapes[name]) for name in INPUTS)
        self.machine.ids = ids.tolist()
        ctypes.memset(memory[0], 0xEE, memory[1])
        assert lens.min(initial=0) >= 0
        assert lens.sum() <= ids.size, "lengths beyond the tokens"
        array_at(addresses["hidden"], np.float32, (ids.size, 2))[:] = np.stack([ids, types], axis=1)
        array_at(addresses["lengths"], np.float32, (lens.size, 1))[:] = lens[:, None]


class Engine:
    """The packed model's engine."""

    num_io_tensors = len(TYPES)
    device_memory_size_v2 = 64 * MAX_TOKENS

    def __init__(self, machine: Machine, streams: Any, names: tuple[str, ...] = tuple(TYPES)) -> None:
        self.machine, self.streams, self.names = machine, streams, names
        self.num_io_tensors = len(names)
        self.has_contexts = True

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> str:
        return "out" if name in OUTPUTS else "in"

    def get_tensor_dtype(self, name: str) -> Any:
        return TYPES[name]

    def create_execution_context(self, strategy: str) -> Context | None:
        assert strategy == "user managed"
        return Context(self.machine, self.streams) if self.has_contexts else None


def tensorrt_module(engine: Callable[[], Engine | None]) -> Any:
    """A stand-in for tensorrt; `engine` gives the engine that a plan deserialises to."""
    return SimpleNamespace(
        __version__="10.6.0.26",
        Runtime=lambda _logger: SimpleNamespace(deserialize_cuda_engine=lambda _plan: engine()),
        TensorIOMode=SimpleNamespace(INPUT="in"),
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user managed"),
        bfloat16="bfloat16",
        nptype=lambda kind: kind,
    )
