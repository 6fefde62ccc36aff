# SPDX-License-Identifier: Apache-2.0
"""DLPack's C functions of other libraries' types: an array described in one call, without a capsule.

PyTorch's `__dlpack__` is written in Python and takes 5 us, and 20 where streams have to wait for each other; these
functions take 1. Source: DLPack's C header (dlpack.h, 1.3), DLPackExchangeAPI, which types offer as
`__dlpack_c_exchange_api__`.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

from .dlpack import Tensor, type_name

NAME = b"dlpack_exchange_api"
MAJOR = 1
_TABLE = struct.Struct("@II6P")
"""Version, the older table, three functions over owning tensors, the one that describes, the one that names streams."""
_TENSOR = struct.Struct("@PiiiBBHPPQ")
"""DLTensor: address, device's kind and index, dimensions, type's code, bits and lanes, shape, strides, byte offset."""
_TensorBuffer: Any = ctypes.c_char * _TENSOR.size
_Int64 = ctypes.c_int64
Bare = tuple[int, int, int, tuple[int, int, int], tuple[int, ...], tuple[int, ...] | None]
"""Address, device's kind and index, type's code, bits and lanes, shape, strides in elements or None: contiguous."""
# The library runs Python's C functions, so the lock stays held, and an exception that it sets is raised.
_Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_NameStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Exchange:
    """The functions of one type of arrays."""

    def __init__(self, describe: int, name_stream: int) -> None:
        self._describe = _Describe(describe)
        self._name_stream = _NameStream(name_stream)

    def describe(self, array: Any) -> Tensor | None:
        """What an array is and where it lies, while it exists; None if the library cannot say (`__dlpack__` may)."""
        description = self.describe_bare(array)
        if description is None:
            return None
        address, kind, index, element, sizes, steps = description
        return Tensor(address, kind, index, type_name(*element), sizes, steps)

    def describe_bare(self, array: Any) -> Bare | None:
        """Like describe, as plain numbers: takes two thirds of the time."""
        buffer = _TensorBuffer()
        try:
            if self._describe(id(array), ctypes.addressof(buffer)):
                return None
        except Exception:
            return None
        address, kind, index, ndim, code, bits, vector_size, shape, strides, offset = _TENSOR.unpack(buffer)
        element = code, bits, vector_size
        if ndim == 1 and strides:  # as ids and lengths are
            sizes, steps = (_Int64.from_address(shape).value,), (_Int64.from_address(strides).value,)
            return address + offset, kind, index, element, sizes, steps
        steps_there = _integers(strides, ndim) if strides else None
        return address + offset, kind, index, element, _integers(shape, ndim), steps_there

    def current_stream(self, kind: int, index: int) -> int:
        """The stream that the library works on now, on this thread: 0 is CUDA's legacy default stream."""
        stream = ctypes.c_void_p()
        self._name_stream(kind, index, ctypes.addressof(stream))
        return stream.value or 0


def exchange_of(array: Any) -> Exchange | None:
    """The functions that an array's type offers; None where there are none, or of another version."""
    kind: Any = type(array)
    return exchange_of_type(kind)


@functools.lru_cache(maxsize=64)
def exchange_of_type(kind: type) -> Exchange | None:
    """As exchange_of, found once for every type."""
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    table = ctypes.string_at(_get_pointer(capsule, NAME), _TABLE.size)
    major, _minor, _older, _allocate, _from_array, _to_array, describe, name_stream = _TABLE.unpack(table)
    if major != MAJOR or not describe or not name_stream:
        return None
    return Exchange(describe, name_stream)


def _integers(address: int, count: int) -> tuple[int, ...]:
    return tuple((_Int64 * count).from_address(address)) if count else ()
