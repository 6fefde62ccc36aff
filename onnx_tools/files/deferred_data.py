# SPDX-License-Identifier: Apache-2.0
"""Weights that are read when somebody asks for them, and are in memory only as long as somebody holds them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

LARGE_MODEL_BYTES = 1 << 25
"""Models whose weights take more than this in float32 are not held in float32: their weights are deferred."""


@dataclass(eq=False)
class DeferredData:
    """A weight's data that is read when somebody asks for it.

    Whoever asks while somebody still holds the data gets the same memory.

    Attributes:
        size: bytes.
        read: gives the numbers, in memory that nobody changes.
        narrow: by ONNX's element types, the same numbers in smaller types that hold them exactly.
        rows: gives only the rows of a table [V,E] that have these indices; None where all are read at once.
    """

    size: int
    read: Callable[[], Array]
    narrow: Mapping[int, DeferredData] = field(default_factory=lambda: MappingProxyType({}))
    rows: Callable[[npt.NDArray[np.int64]], Array] | None = None
    _owner: weakref.ref[Array] | None = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __len__(self) -> int:
        return self.size

    def data(self) -> memoryview:
        """The bytes."""
        with self._lock:
            values = None if self._owner is None else self._owner()
            if values is None:
                values = np.ascontiguousarray(self.read())
                owner = _owner(values)
                if owner.nbytes == self.size and owner.ctypes.data == values.ctypes.data:
                    self._owner = weakref.ref(owner)
            return values.reshape(-1).view(np.uint8).data


def _owner(values: Array) -> Array:
    """The array that owns the memory: views of it keep it alive, but not each other."""
    while isinstance(values.base, np.ndarray):
        values = values.base
    return values


def of_bfloat16(bits: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """The numbers that have these bits, the upper halves of float32's; in C order."""
    wide = bits.astype(np.uint32, order="C")
    wide <<= 16
    return wide.view(np.float32)
