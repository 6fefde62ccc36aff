# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules, with NumPy as the other library: reading them, making them, and who keeps memory alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from padfree.runtime.arrays import dlpack

CPU = 1


class Owner:
    """The owner of memory that a capsule points to."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def tensor(self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> dlpack.Tensor:
        return dlpack.Tensor(self.values.ctypes.data, CPU, 0, self.values.dtype.name, shape, strides)


class Producer:
    """An object that NumPy's from_dlpack takes."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float16", "float32", "float64", "bool"])
def test_reading_what_numpy_makes(dtype: str) -> None:
    array = np.zeros((3, 4), dtype=dtype)
    tensor = dlpack.read(array.__dlpack__())
    assert (tensor.address, tensor.device_kind, tensor.dtype) == (array.ctypes.data, CPU, dtype)
    assert (tensor.shape, tensor.strides or (4, 1)) == ((3, 4), (4, 1))


def test_reading_an_array_with_gaps() -> None:
    array = np.arange(20, dtype=np.int32).reshape(4, 5)[1::2, ::2]
    tensor = dlpack.read(array.__dlpack__())
    assert (tensor.address, tensor.shape, tensor.strides) == (array.ctypes.data, (2, 3), (10, 2))


def test_reading_leaves_the_capsule_to_others() -> None:
    array = np.arange(3, dtype=np.int32)
    capsule = array.__dlpack__()
    dlpack.read(capsule)
    assert np.from_dlpack(Producer(capsule)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "float32", "bool"])
def test_numpy_reads_what_we_make(dtype: str) -> None:
    owner = Owner(np.arange(6).astype(dtype))
    result = np.from_dlpack(Producer(dlpack.make(owner.tensor((2, 3), (3, 1)), owner)))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, owner.values.reshape(2, 3))
    assert result.ctypes.data == owner.values.ctypes.data


def test_what_we_make_may_have_gaps() -> None:
    owner = Owner(np.arange(12, dtype=np.float32))
    result = np.from_dlpack(Producer(dlpack.make(owner.tensor((3, 2), (4, 1)), owner)))
    assert result.tolist() == [[0, 1], [4, 5], [8, 9]]


def test_bfloat16_has_a_name() -> None:
    capsule = dlpack.make(dlpack.Tensor(512, dlpack.CUDA, 1, "bfloat16", (3,), None), None)
    assert dlpack.read(capsule) == dlpack.Tensor(512, dlpack.CUDA, 1, "bfloat16", (3,), None)


def test_a_consumer_keeps_the_owner_alive() -> None:
    owner = Owner(np.arange(4, dtype=np.int32))
    alive = weakref.ref(owner)
    result = np.from_dlpack(Producer(dlpack.make(owner.tensor((4,)), owner)))
    part = result[2:]
    del owner, result
    gc.collect()
    assert alive() is not None
    assert part.tolist() == [2, 3]
    del part
    gc.collect()
    assert alive() is None


def test_a_capsule_that_nobody_takes_lets_go() -> None:
    owner = Owner(np.arange(4, dtype=np.int32))
    alive = weakref.ref(owner)
    capsule = dlpack.make(owner.tensor((4,)), owner)
    del owner
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None
