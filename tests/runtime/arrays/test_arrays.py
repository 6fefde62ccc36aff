# SPDX-License-Identifier: Apache-2.0
"""Arrays on the GPU as inputs and results, with memory of the host in their place."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from padfree.runtime import SessionError
from padfree.runtime.arrays import dlpack
from padfree.runtime.arrays.device_arrays import (
    LEGACY_STREAM,
    CallerStream,
    DeviceArray,
    caller_stream,
    contiguous_strides,
    on_device,
    read_device_array,
)

CPU = 1
HERE = 2  # the session's GPU


class Interface:
    """An array with `__cuda_array_interface__` alone, like PyCUDA's and Numba's."""

    def __init__(self, **changes: Any) -> None:
        plain = {"shape": (6,), "typestr": "<i4", "data": (4096, False), "version": 3, "strides": None}
        self.__cuda_array_interface__ = {**plain, **changes}


class Capsule:
    """An array with DLPack alone, like PyTorch's and CuPy's."""

    def __init__(self, *, kind: int = dlpack.CUDA, **changes: Any) -> None:
        plain = {"shape": (6,), "dtype": "int32", "strides": (1,), "address": 4096}
        self.tensor = dlpack.Tensor(device_kind=kind, device_index=HERE, **{**plain, **changes})
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.device_kind, HERE

    def __dlpack__(self, *, stream: int) -> Any:
        self.streams.append(stream)
        return dlpack.make(self.tensor, self)


def read(value: Any, *, stream: CallerStream | None = None, found_on: int | None = HERE) -> Any:
    return read_device_array(
        value, "ids", np.dtype(np.int32), device=HERE, stream=stream, device_of=lambda _address: found_on
    )


def test_what_is_on_a_gpu() -> None:
    assert on_device(Interface())
    assert on_device(Capsule())
    assert on_device(Capsule(kind=dlpack.CUDA_MANAGED))
    for value in (Capsule(kind=CPU), np.zeros(2), [1], (1,), 7, "text"):
        assert not on_device(value)


@pytest.mark.parametrize("value", [Interface(), Capsule(), Interface(strides=(4,)), Capsule(strides=None)])
def test_arrays_are_read_where_they_are(value: Any) -> None:
    actual = read(value)
    assert (actual.address, actual.shape, actual.dtype, actual.nbytes) == (4096, (6,), np.int32, 24)
    assert actual.owner is not None


def test_whose_stream_makes_the_values() -> None:
    assert read(Interface()).stream is None
    assert read(Interface(stream=77)).stream == 77
    array = Capsule()
    assert read(array).stream is None
    assert read(array, stream=CallerStream(55)).stream is None
    assert array.streams == [LEGACY_STREAM, 55], "DLPack's producer makes this stream wait"


@pytest.mark.parametrize("value", [Interface(typestr="<i8"), Capsule(dtype="int64")])
def test_another_type_is_refused(value: Any) -> None:
    with pytest.raises(SessionError, match=r"'ids' on the GPU has type int64, the engine reads int32.*torch\.int32"):
        read(value)


@pytest.mark.parametrize("value", [Interface(strides=(8,)), Capsule(strides=(2,)), Capsule(strides=(-1,))])
def test_gaps_are_refused(value: Any) -> None:
    with pytest.raises(SessionError, match=r"'ids' has shape \[6\] with strides .* allowed: contiguous"):
        read(value)


def test_strides_along_one_element_do_not_count() -> None:
    assert read(Capsule(shape=(1,), strides=(9,))).shape == (1,)
    assert read(Capsule(shape=(0,), strides=(9,), address=0), found_on=None).nbytes == 0


@pytest.mark.parametrize(("found_on", "where"), [(None, "host memory"), (0, "GPU 0")])
def test_other_memory_is_refused(found_on: int | None, where: str) -> None:
    with pytest.raises(SessionError, match=f"'ids' is in {where}, the session runs on GPU {HERE}"):
        read(Interface(), found_on=found_on)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, LEGACY_STREAM),
        (77, 77),
        (SimpleNamespace(cuda_stream=77), 77),
        (SimpleNamespace(cuda_stream=0), LEGACY_STREAM),
        (SimpleNamespace(ptr=78), 78),
        (SimpleNamespace(handle=79), 79),
        (SimpleNamespace(__cuda_stream__=lambda: (0, 80)), 80),
        (SimpleNamespace(__cuda_stream__=(0, 81)), 81),
    ],
)
def test_streams_of_any_library(stream: Any, handle: int) -> None:
    actual = caller_stream(stream)
    assert actual is not None
    assert actual.handle == handle
    assert isinstance(stream, int) or actual.owner is stream, "a stream lives as long as results need it"


def test_no_stream_and_what_is_none() -> None:
    assert caller_stream(None) is None
    for wrong in ("default", True, 1.5):
        with pytest.raises(SessionError, match=f"stream is a {type(wrong).__name__}, allowed: an integer handle"):
            caller_stream(wrong)


class HostMemory:
    """A run's results, in memory of the host."""

    device = HERE

    def __init__(self, values: Any, stream: int | None = None) -> None:
        self.values, self.stream = values, stream
        self.waiting: list[int] = []

    def let_wait(self, consumer: int) -> None:
        self.waiting.append(consumer)

    def read(self, address: int, size_bytes: int) -> Any:
        return np.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), np.uint8).copy()


def result(shape: tuple[int, ...], dtype: str = "float32", **options: Any) -> tuple[DeviceArray, Any, HostMemory]:
    """A result, the values that it holds, and its memory."""
    values = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    memory = HostMemory(values)
    return DeviceArray(memory, values.ctypes.data, shape, dtype, **options), values, memory


def test_results_are_cut_as_numpy_cuts() -> None:
    array, values, _ = result((5, 3, 2))
    for at in (slice(1, 4), slice(2), slice(-2, None), slice(4, 2), slice(9, 12), 0, 4, -1):
        part = array[at]
        assert part.shape == values[at].shape
        np.testing.assert_array_equal(part.to_host(), values[at])
    np.testing.assert_array_equal(array[1:][2][1:].to_host(), values[1:][2][1:])
    for positions in (
        (2,),
        (2, slice(2)),
        (slice(None), 1),
        (1, slice(None), slice(1)),
        (3, 2, 1),
        (slice(3), 0, slice(1, 2)),
    ):
        part = array[positions]
        assert part.shape == values[positions].shape
        np.testing.assert_array_equal(part.to_host(), values[positions])
    assert len(array) == 5
    with pytest.raises(IndexError, match="4 indices, the array has 3 dimensions"):
        array[0, 0, 0, 0]
    with pytest.raises(IndexError, match="row 5 of 5"):
        array[5]
    with pytest.raises(IndexError, match="step 2, allowed: 1"):
        array[::2]


def test_rows_of_a_graph_may_be_longer_than_their_part() -> None:
    """A padded output [B, S, ...] of a graph with more slots than the run has."""
    _, values, memory = result((4, 6, 2))
    part = DeviceArray(memory, values.ctypes.data, (3, 5, 2), "float32", contiguous_strides((4, 6, 2)))
    np.testing.assert_array_equal(part.to_host(), values[:3, :5])
    np.testing.assert_array_equal(part[2][:4].to_host(), values[2, :4])
    assert part.__cuda_array_interface__["strides"] == (48, 8, 4)
    assert part[1].__cuda_array_interface__["strides"] is None


def test_the_cuda_array_interface() -> None:
    array, values, memory = result((5, 3), "float16")
    memory.stream = 55
    wanted = {"shape": (5, 3), "typestr": "<f2", "data": (values.ctypes.data, False), "strides": None}
    assert array.__cuda_array_interface__ == {**wanted, "stream": 55, "version": 3}
    assert array[2:2].__cuda_array_interface__["data"] == (0, False), "no memory, no address"
    assert repr(array) == "DeviceArray(shape=(5, 3), dtype=float16, device=2)"


def test_dlpack_makes_consumers_wait() -> None:
    array, values, memory = result((5, 3))
    assert array.__dlpack_device__() == (dlpack.CUDA, HERE)
    tensor = dlpack.read(array[1:].__dlpack__())
    assert tensor == dlpack.Tensor(values.ctypes.data + 12, dlpack.CUDA, HERE, "float32", (4, 3), (3, 1))
    array.__dlpack__(stream=77)
    array.__dlpack__(stream=-1)
    assert memory.waiting == [LEGACY_STREAM, 77]


def test_bfloat16_goes_by_dlpack_alone() -> None:
    bits = np.array([[0x3F80, 0x4000], [0xBF80, 0x0000]], dtype=np.uint16)  # 1, 2, -1, 0
    array = DeviceArray(HostMemory(bits), bits.ctypes.data, (2, 2), "bfloat16")
    assert not hasattr(array, "__cuda_array_interface__")
    assert dlpack.read(array.__dlpack__()).dtype == "bfloat16"
    assert (array.to_host().dtype, array[1].to_host().tolist()) == (np.float32, [-1, 0])
    assert array[:0].to_host().dtype == np.float32


def test_scalars_and_their_strides() -> None:
    array, _, _ = result((3,))
    assert (array[1].shape, array[1].to_host().tolist()) == ((), 1.0)
    assert [contiguous_strides(shape) for shape in ((), (4,), (2, 3, 4))] == [(), (1,), (12, 4, 1)]
