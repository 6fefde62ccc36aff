# SPDX-License-Identifier: Apache-2.0
"""DLPack's C functions, of a type that is made here and of PyTorch's tensors."""

from __future__ import annotations

import ctypes
import gc
import struct
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from padfree.runtime import SessionError
from padfree.runtime.arrays import dlpack
from padfree.runtime.arrays.device_arrays import LEGACY_STREAM, CallerStream, on_device, read_device_array
from padfree.runtime.arrays.dlpack_exchange import MAJOR, NAME, exchange_of_type

CPU, HERE = 1, 2
STREAM = 77
_Function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_StreamFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class Library:
    """A library whose arrays claim to be on a GPU, with memory of the host, and have DLPack's C functions."""

    def __init__(self, *, major: int = MAJOR, fails: bool = False, stream: int = STREAM) -> None:
        self.fails, self.stream = fails, stream
        self.asked: list[tuple[int, int]] = []
        self._functions = (_Function(self._describe), _StreamFunction(self._current))
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions]
        self._table = ctypes.create_string_buffer(struct.pack("@II6P", major, 3, 0, 0, 0, 0, *addresses))
        capsule = _new_capsule(ctypes.addressof(self._table), NAME, None)
        self.array = type("Array", (_Array,), {"__dlpack_c_exchange_api__": capsule})

    def _describe(self, array: int, room: int) -> int:
        if self.fails:
            return -1
        actual = ctypes.cast(array, ctypes.py_object).value
        ctypes.memmove(room, actual.describe(), 48)
        return 0

    def _current(self, kind: int, index: int, stream: Any) -> int:
        self.asked.append((kind, index))
        stream[0] = self.stream
        return 0


class _Array:
    def __init__(self, values: Any, *, kind: int = dlpack.CUDA, index: int = HERE, steps: bool = True) -> None:
        self.values, self.kind, self.index, self.steps = values, kind, index, steps
        self.shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        self.strides = (ctypes.c_int64 * values.ndim)(*(step // values.itemsize for step in values.strides))

    def describe(self) -> bytes:
        shape, strides = ctypes.addressof(self.shape), ctypes.addressof(self.strides) if self.steps else 0
        code, bits = dlpack.CODES[self.values.dtype.name.rstrip("0123456789")], 8 * self.values.itemsize
        address, rank = self.values.ctypes.data, self.values.ndim
        return struct.pack("@PiiiBBHPPQ", address - 16, self.kind, self.index, rank, code, bits, 1, shape, strides, 16)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.index

    def __dlpack__(self, *, stream: int) -> Any:
        tensor = dlpack.Tensor(self.values.ctypes.data, self.kind, self.index, "int32", self.values.shape, None)
        return dlpack.make(tensor, self)


@pytest.fixture
def library() -> Iterator[Library]:
    yield Library()
    exchange_of_type.cache_clear()


def read(value: Any, *, stream: CallerStream | None = None) -> Any:
    def device_of(_address: int) -> int:
        return 9

    return read_device_array(value, "ids", np.dtype(np.int32), device=HERE, stream=stream, device_of=device_of)


@pytest.mark.parametrize("steps", [True, False])
def test_arrays_are_described_where_they_are(library: Library, steps: bool) -> None:
    values = np.arange(6, dtype=np.int32)
    array = library.array(values, steps=steps)
    assert on_device(array)
    actual = read(array)
    assert (actual.address, actual.shape, actual.nbytes) == (values.ctypes.data, (6,), 24)
    assert actual.owner is array, "the memory lives as long as the run"
    assert library.asked == [(dlpack.CUDA, HERE)]
    assert actual.stream == STREAM, "the run waits for the stream that the library works on"
    library.stream = 0
    assert read(array, stream=CallerStream(55)).stream == LEGACY_STREAM


def test_what_does_not_fit_is_refused(library: Library) -> None:
    ids = np.arange(6, dtype=np.int32)
    with pytest.raises(SessionError, match="'ids' on the GPU has type int64, the engine reads int32"):
        read(library.array(ids.astype(np.int64)))
    with pytest.raises(SessionError, match=r"shape \[3\] with strides \[2\], allowed: contiguous arrays"):
        read(library.array(ids[::2]))
    with pytest.raises(SessionError, match="'ids' is in GPU 0, the session runs on GPU 2"):
        read(library.array(ids, index=0))
    assert not on_device(library.array(ids, kind=CPU))


def test_managed_memory_is_where_its_address_is(library: Library) -> None:
    with pytest.raises(SessionError, match="'ids' is in GPU 9"):
        read(library.array(np.arange(6, dtype=np.int32), kind=dlpack.CUDA_MANAGED))
    assert library.asked == [(dlpack.CUDA_MANAGED, HERE)]


@pytest.mark.parametrize("broken", [{"major": MAJOR + 1}, {"fails": True}])
def test_without_the_functions_there_is_the_capsule(broken: dict[str, Any]) -> None:
    library = Library(**broken)
    array = library.array(np.arange(6, dtype=np.int32))
    assert on_device(array)
    with pytest.raises(SessionError, match="GPU 9"):
        read(array)  # the array is asked for a capsule
    exchange_of_type.cache_clear()


def test_nothing_is_kept_of_arrays(library: Library) -> None:
    array = library.array(np.arange(3, dtype=np.int32))
    alive = weakref.ref(array)
    read(array)
    del array
    gc.collect()
    assert alive() is None


def test_vectors_have_a_name_of_their_own() -> None:
    assert [dlpack.type_name(*kind) for kind in ((0, 32, 1), (2, 16, 4), (6, 8, 1), (9, 8, 1))] == [
        "int32", "float16 x 4", "bool", "type code 9, 8",
    ]  # fmt: skip


@pytest.mark.needs_torch
def test_pytorch_describes_its_tensors() -> None:
    import torch

    exchange = exchange_of_type(torch.Tensor)
    if exchange is None:
        pytest.skip("this PyTorch has no C functions of DLPack")
    grid = torch.arange(20, dtype=torch.int32).reshape(4, 5)
    for tensor in (grid, grid[1:, ::2], grid[2], torch.zeros(0, dtype=torch.int32), torch.tensor(7)):
        actual = exchange.describe(tensor)
        assert actual is not None
        assert (actual.address, actual.device_kind) == (tensor.data_ptr(), CPU)
        assert (actual.shape, actual.strides) == (tuple(tensor.shape), tensor.stride())
        assert actual.dtype == str(tensor.dtype).removeprefix("torch.")
        assert not on_device(tensor)
    sparse = torch.eye(3).to_sparse()
    assert exchange.describe(sparse) is None, "whose C function raises"
