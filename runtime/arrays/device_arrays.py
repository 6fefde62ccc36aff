# SPDX-License-Identifier: Apache-2.0
"""Arrays on the GPU, in and out: what PyTorch, CuPy, PyCUDA and others pass, and results that stay on the device.

Sources: CUDA array interface version 3 (Numba's documentation), the Python array API's DLPack rules, and cuda.core's
stream protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..backend import widen_bfloat16
from ..errors import SessionError
from ..rows import Array
from . import dlpack
from .dlpack_exchange import exchange_of

CUDA_ARRAY_INTERFACE = 3
LEGACY_STREAM = 1  # how both protocols name CUDA's legacy default stream
DLPACK_NO_SYNC = -1
SIZES = {"bfloat16": 2, "bool": 1}  # bytes


class DeviceInput(NamedTuple):
    """An array of the caller on the GPU, checked: contiguous, of the type that the engine reads.

    `stream` is the one that produces its values; None if they are ready, or are produced on our stream.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: int | None = None
    owner: Any = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


DeviceFeeds = Mapping[str, Array | DeviceInput]
"""Input name -> its array, on the host or on the GPU."""


def on_device(value: Any) -> bool:
    """Whether a value is an array on a GPU."""
    if isinstance(value, (np.ndarray, list, tuple)):
        return False
    exchange = exchange_of(value)
    tensor = None if exchange is None else exchange.describe(value)
    if tensor is not None:
        return tensor.device_kind in (dlpack.CUDA, dlpack.CUDA_MANAGED)
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[0]) in (dlpack.CUDA, dlpack.CUDA_MANAGED)
    return hasattr(value, "__cuda_array_interface__")


def any_on_device(inputs: Any, seq_lens: Any) -> bool:
    """Whether an input of a packed request, or its lengths, is on the GPU."""
    values = (*inputs.values(), seq_lens) if isinstance(inputs, Mapping) else (inputs, seq_lens)
    return any(on_device(value) for value in values)


def read_device_array(
    value: Any,
    name: str,
    dtype: np.dtype[Any],
    *,
    device: int,
    stream: CallerStream | None,
    device_of: Callable[[int], int | None],
) -> DeviceInput:
    """Checks an array on the GPU, without copying or looking at its values.

    Args:
        value: an object with `__dlpack_c_exchange_api__`, `__dlpack__` or `__cuda_array_interface__`.
        name: the input's name, for messages.
        dtype: what the engine reads.
        device: the GPU that the engine is on.
        stream: the caller's stream, None for the legacy default one: DLPack's producers make it wait for the values.
        device_of: the GPU that an address belongs to, None for the host.

    Raises:
        SessionError: the array has another type or gaps, or lies on another GPU or on the host.
    """
    array = _caller_array(value, stream)
    if array.dtype != _name_of(dtype):
        raise SessionError(
            f"'{name}' on the GPU has type {array.dtype}, the engine reads {dtype.name}; convert it there, for example "
            f"with tensor.to(torch.{dtype.name}) or array.astype('{dtype.name}')"
        )
    if array.strides is not None and _has_gaps(array.shape, array.strides):
        raise SessionError(
            f"'{name}' has shape {list(array.shape)} with strides {list(array.strides)}, allowed: contiguous arrays; "
            "make it one, for example with tensor.contiguous() or cupy.ascontiguousarray(array)"
        )
    if math.prod(array.shape):
        found_on = device_of(array.address) if array.device is None else array.device
        if found_on != device:
            where = "host memory" if found_on is None else f"GPU {found_on}"
            raise SessionError(f"'{name}' is in {where}, the session runs on GPU {device}; copy it there")
    return DeviceInput(array.address, array.shape, dtype, array.producer, array.owner)


class _CallerArray(NamedTuple):
    """An array on the GPU as its library describes it; `device` is None where the address has to tell."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    owner: Any
    producer: int | None = None
    device: int | None = None


def _caller_array(value: Any, stream: CallerStream | None) -> _CallerArray:
    exchange = exchange_of(value)
    tensor = None if exchange is None else exchange.describe(value)
    if exchange is not None and tensor is not None:
        producer = exchange.current_stream(tensor.device_kind, tensor.device_index) or LEGACY_STREAM
        device = tensor.device_index if tensor.device_kind == dlpack.CUDA else None
        return _CallerArray(tensor.address, tensor.shape, tensor.strides, tensor.dtype, value, producer, device)
    if hasattr(value, "__dlpack__"):
        capsule = value.__dlpack__(stream=LEGACY_STREAM if stream is None else stream.handle)
        tensor = dlpack.read(capsule)
        return _CallerArray(tensor.address, tensor.shape, tensor.strides, tensor.dtype, capsule)
    interface = value.__cuda_array_interface__
    shape, element = tuple(int(size) for size in interface["shape"]), np.dtype(interface["typestr"])
    steps = interface.get("strides")
    strides = None if steps is None else tuple(int(step) // element.itemsize for step in steps)
    return _CallerArray(
        int(interface["data"][0]), shape, strides, _name_of(element), value, producer=interface.get("stream")
    )


@dataclass(frozen=True)
class CallerStream:
    """A stream of the caller: its handle, and the object that keeps it alive."""

    handle: int
    owner: Any = field(default=None, repr=False)


def caller_stream(stream: Any) -> CallerStream | None:
    """A stream given as an integer, or as an object of cuda.core, PyTorch, CuPy or PyCUDA; None stays None.

    Raises:
        SessionError: it is no stream.
    """
    if stream is None:
        return None
    if isinstance(stream, int) and not isinstance(stream, bool):
        return CallerStream(stream or LEGACY_STREAM)
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return CallerStream(int((protocol() if callable(protocol) else protocol)[1]) or LEGACY_STREAM, stream)
    for attribute in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, PyCUDA
        if hasattr(stream, attribute):
            return CallerStream(int(getattr(stream, attribute)) or LEGACY_STREAM, stream)
    raise SessionError(
        f"stream is a {type(stream).__name__}, allowed: an integer handle, or a stream of cuda.core, PyTorch, CuPy or "
        "PyCUDA; pass one of those, or leave it out"
    )


class Memory(Protocol):
    """What a DeviceArray needs of the memory that it is in."""

    device: int

    @property
    def stream(self) -> int | None:
        """The stream in whose order the values are ready; None if they are ready already."""

    def let_wait(self, consumer: int) -> None:
        """Makes a stream wait for the values."""

    def read(self, address: int, size_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A copy on the host, after waiting for the values."""


class DeviceArray:
    """A result on the GPU, for any library that reads `__cuda_array_interface__` or DLPack; never copied.

    The memory belongs to the arrays of one run together and is freed when the last of them, and of what other
    libraries made from them, is gone. bfloat16 is offered through DLPack alone: the other interface cannot name it.

    Attributes:
        shape: elements in every dimension.
        dtype: "float32", "float16", "bfloat16", ...
        device: CUDA device number.
        stream: the stream in whose order the values are ready; None if they are ready already.
    """

    def __init__(
        self,
        memory: Memory,
        address: int,
        shape: tuple[int, ...],
        dtype: str,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self._memory = memory
        self._address = address
        self.shape = shape
        self.dtype = dtype
        self._strides = strides or contiguous_strides(shape)

    @property
    def device(self) -> int:
        """CUDA device number."""
        return self._memory.device

    @property
    def stream(self) -> int | None:
        """The stream in whose order the values are ready; None if they are ready already."""
        return self._memory.stream

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"

    def __getitem__(self, at: int | slice | tuple[int | slice, ...]) -> DeviceArray:
        """A part of the same memory, by an index or a slice with step 1 for each of the first dimensions."""
        offset, shape, strides = 0, list[int](), list[int]()
        index = at if isinstance(at, tuple) else (at,)
        if len(index) > len(self.shape):
            raise IndexError(f"{len(index)} indices, the array has {len(self.shape)} dimensions")
        for item, size, stride in zip(index, self.shape, self._strides, strict=False):
            if isinstance(item, slice):
                start, stop, step = item.indices(size)
                if step != 1:
                    raise IndexError(f"a slice with step {step}, allowed: 1")
                offset += start * stride
                shape.append(max(0, stop - start))
                strides.append(stride)
            elif -size <= item < size:
                offset += item % size * stride
            else:
                raise IndexError(f"row {item} of {size}")
        rest = len(index)
        return DeviceArray(
            self._memory, self._address + offset * self._itemsize, (*shape, *self.shape[rest:]), self.dtype,
            (*strides, *self._strides[rest:]),
        )  # fmt: skip

    @property
    def _itemsize(self) -> int:
        return SIZES.get(self.dtype) or np.dtype(self.dtype).itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype == "bfloat16":
            raise AttributeError("the CUDA array interface has no bfloat16; use DLPack")
        strides = None if self._strides == contiguous_strides(self.shape) else self._strides
        return {
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self._address if math.prod(self.shape) else 0, False),
            "strides": strides and tuple(step * self._itemsize for step in strides),
            "stream": self.stream,
            "version": CUDA_ARRAY_INTERFACE,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_options: Any) -> Any:
        """A DLPack capsule; the consumer's stream (None: the legacy default stream) waits for the values."""
        if stream != DLPACK_NO_SYNC:
            self._memory.let_wait(LEGACY_STREAM if stream is None else stream)
        tensor = dlpack.Tensor(self._address, dlpack.CUDA, self.device, self.dtype, self.shape, self._strides)
        return dlpack.make(tensor, self)

    def to_host(self) -> np.ndarray[Any, np.dtype[Any]]:
        """A NumPy copy, after waiting for the values; bfloat16 becomes float32."""
        if not math.prod(self.shape):
            return np.zeros(self.shape, np.float32 if self.dtype == "bfloat16" else self.dtype)
        steps = tuple(step * self._itemsize for step in self._strides)
        span = sum((size - 1) * step for size, step in zip(self.shape, steps, strict=True)) + self._itemsize
        storage_dtype = np.dtype(np.uint16) if self.dtype == "bfloat16" else np.dtype(self.dtype)
        values = np.ndarray(self.shape, storage_dtype, self._memory.read(self._address, span), strides=steps)
        return widen_bfloat16(values) if self.dtype == "bfloat16" else np.asarray(values, order="C")


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index to the next in every dimension, without gaps."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))[: len(shape)] if shape else ()


def _has_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether steps differ from a contiguous array's; dimensions of size 0 or 1 do not count."""
    gapless = contiguous_strides(shape)
    if strides == gapless:
        return False
    return math.prod(shape) > 0 and any(
        size > 1 and step != other for size, step, other in zip(shape, strides, gapless, strict=True)
    )


@lru_cache(64)
def _name_of(dtype: np.dtype[Any]) -> str:
    """The type's name, cached because NumPy takes 3 us to build it."""
    return str(dtype.name)
