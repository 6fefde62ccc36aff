# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules in plain Python: reading those of other libraries, making our own.

Source: DLPack's C header (dlpack.h), structures DLTensor and DLManagedTensor, and the Python array API's rules for
`__dlpack__`.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

CUDA = 2
CUDA_MANAGED = 13
CAPSULE = b"dltensor"
CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
TYPE_NAMES = {code: name for name, code in CODES.items()}


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    _fields_ = (
        ("tensor", _DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", _Callback),
    )


def _release(address: int) -> None:
    """The deleter of our tensors: whoever took the capsule needs the memory no more."""
    _count_down(_ManagedTensor.from_address(address).context)


def _drop(capsule: int) -> None:
    """The destructor of our capsules: releases the tensor unless a consumer took it, which renames the capsule."""
    if _is_valid(capsule, CAPSULE):
        _release(_get_pointer(capsule, CAPSULE))


# Private prototypes, over bare addresses: a capsule that is being destroyed must not be counted again.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_count_up = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_IncRef", ctypes.pythonapi))
_count_down = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_release_callback = _Callback(_release)
_drop_callback = _Callback(_drop)


class Tensor(NamedTuple):
    """What a capsule describes; strides count elements, None means contiguous."""

    address: int
    device_kind: int
    device_index: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


def read(capsule: Any) -> Tensor:
    """Reads a capsule without taking it: it has to live as long as the memory is used."""
    tensor = _ManagedTensor.from_address(_get_pointer(id(capsule), CAPSULE)).tensor
    return Tensor(
        (tensor.data or 0) + tensor.byte_offset,
        tensor.device.kind,
        tensor.device.index,
        type_name(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
        tuple(tensor.shape[: tensor.ndim]),
        tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
    )


@functools.lru_cache(64)
def type_name(code: int, bits: int, vector_size: int) -> str:
    """An element type's name: "int32", "bfloat16"; of vectors "float16 x 2"."""
    kind = TYPE_NAMES.get(code, f"type code {code}, ")
    name = kind if kind == "bool" else f"{kind}{bits}"
    return name if vector_size == 1 else f"{name} x {vector_size}"


class _Holder:
    """Keeps alive what a capsule points to."""

    def __init__(self, tensor: Tensor, owner: Any) -> None:
        self.owner = owner
        ndim = len(tensor.shape)
        self.shape = (ctypes.c_int64 * ndim)(*tensor.shape)
        self.strides = (ctypes.c_int64 * ndim)(*tensor.strides) if tensor.strides is not None else None
        self.tensor = _ManagedTensor()
        name = tensor.dtype.rstrip("0123456789")
        dl_tensor = self.tensor.tensor
        dl_tensor.data = tensor.address
        dl_tensor.device = _DLDevice(tensor.device_kind, tensor.device_index)
        dl_tensor.ndim = ndim
        dl_tensor.dtype = _DataType(CODES[name], int(tensor.dtype[len(name) :] or 8), 1)
        dl_tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if self.strides is not None:
            dl_tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        self.tensor.deleter = _release_callback


def make(tensor: Tensor, owner: Any) -> Any:
    """A capsule for a consumer; `owner` lives until the consumer lets go of it, or the capsule goes unused."""
    holder = _Holder(tensor, owner)
    holder.tensor.context = id(holder)
    _count_up(id(holder))
    return _new_capsule(ctypes.addressof(holder.tensor), CAPSULE, ctypes.cast(_drop_callback, ctypes.c_void_p))
