# SPDX-License-Identifier: Apache-2.0
"""Weights outside of their messages: in the file that they came from, mapped into memory, or in arrays.

Protobuf copies the data in a message whenever somebody reads it, and fresh memory takes longer than the copy itself.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto, helper, numpy_helper
from onnx_graphsurgeon.ir.tensor import LazyValues
from onnx_graphsurgeon.logger import G_LOGGER

from ..errors import ModelFileError
from .deferred_data import Array, DeferredData

LARGE_BYTES = 1 << 16
"""Smaller weights stay in their messages."""
_ALIGNMENT_BYTES = 8  # of the widest numbers
_DTYPE_BY_TYPE: Mapping[int, str] = MappingProxyType({TensorProto.FLOAT: "<f4", TensorProto.FLOAT16: "<f2"})


class Storage(Enum):
    """Where the large weights of a file are once it is read.

    A mapped file that becomes shorter ends the process (SIGBUS): whoever maps files does it in a process whose end is
    just one more error.
    """

    MAP = auto()
    MEMORY = auto()
    MESSAGES = auto()


class Weights:
    """The data of initializers whose messages hold none, by their names.

    Args:
        storage: where the weights of files that are read go; with MESSAGES, they are not held here.
    """

    def __init__(self, storage: Storage = Storage.MAP) -> None:
        self._storage = storage
        self._data: dict[str, memoryview | DeferredData] = {}
        self._files: dict[Path, os.stat_result] = {}

    def copy(self) -> Weights:
        """The same weights; the data is shared."""
        result = self.without_data()
        result._data = dict(self._data)
        return result

    def without_data(self) -> Weights:
        """Weights without data yet, for a model that is made from one with these: they watch the same files."""
        result = Weights(self._storage)
        result._files = dict(self._files)
        return result

    def map_file(self, stream: BinaryIO) -> memoryview | None:
        """An open file's bytes, in memory; None for MESSAGES, for empty files, and on some file systems."""
        if self._storage is Storage.MESSAGES:
            return None
        status = os.fstat(stream.fileno())
        try:
            if self._storage is Storage.MEMORY:
                content, done = _copy(stream, status.st_size)
            else:
                content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
                done = len(content)
        except (OSError, ValueError):
            return None
        if done < status.st_size:
            raise ModelFileError(
                f"'{stream.name}' had {status.st_size} bytes and has {done} now: it was written to while it was read; "
                "run this again when the file is complete"
            )
        self._files[Path(stream.name)] = status
        return content

    def map_or_watch(self, stream: BinaryIO) -> memoryview | None:
        """An open file's bytes where files are mapped; None otherwise, and whoever reads parts of it calls check_files.

        Where parts of a file are copied anyway, it is not read into memory as a whole, too.
        """
        if self._storage is Storage.MAP:
            return self.map_file(stream)
        self._files[Path(stream.name)] = os.fstat(stream.fileno())
        return None

    def check_files(self) -> None:
        """Raises ModelFileError where a file was written to meanwhile; to be called when its weights are done with.

        A new file in the place of the old one does no harm: the old one is still what is mapped.
        """
        for file, then in self._files.items():
            with contextlib.suppress(OSError):
                now = file.stat()
                if now.st_ino == then.st_ino and (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
                    raise ModelFileError(
                        f"'{file}' was written to while its weights were read; run this again when the file is complete"
                    )

    def hold(self, tensor: TensorProto, data: memoryview | DeferredData) -> None:
        """Makes `data`, little endian, the data of a tensor, whose message loses its own."""
        tensor.ClearField("raw_data")
        del tensor.external_data[:]
        tensor.data_location = TensorProto.EXTERNAL
        self._data[tensor.name] = data

    def hold_array(self, tensor: TensorProto, values: Array) -> None:
        """Gives a tensor the values of an array, with its type and shape."""
        tensor.data_type = helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor.dims[:] = values.shape
        self.hold(tensor, bytes_of_array(values))

    def align(self) -> None:
        """Copies data that is not aligned as processors and libraries need it."""
        for name, data in self._data.items():
            if isinstance(data, DeferredData):
                continue
            values = np.frombuffer(data, np.uint8)
            if values.ctypes.data % _ALIGNMENT_BYTES:
                self._data[name] = bytes_of_array(values.copy())

    def __contains__(self, tensor: TensorProto) -> bool:
        return self.held_for(tensor) is not None

    def held_for(self, tensor: TensorProto) -> memoryview | DeferredData | None:
        """The data held for a tensor, read or not, which is external without naming a file. Otherwise None."""
        is_in_memory = tensor.data_location == TensorProto.EXTERNAL and not tensor.external_data
        return self._data.get(tensor.name) if is_in_memory else None

    def data_of(self, tensor: TensorProto) -> memoryview | None:
        """A tensor's data where it is held, read if it is deferred. Otherwise None."""
        data = self.held_for(tensor)
        return data.data() if isinstance(data, DeferredData) else data

    def release(self, tensor: TensorProto) -> None:
        """Holds a tensor's data no longer."""
        self._data.pop(tensor.name, None)

    def size_of(self, tensor: TensorProto) -> int | None:
        """The number of bytes of a tensor's data where it is held, read or not. Otherwise None."""
        data = self.held_for(tensor)
        return None if data is None else len(data)


def _copy(stream: BinaryIO, size: int) -> tuple[memoryview, int]:
    """A copy of a file's bytes, and how many of them were read. Raises ValueError for an empty file."""
    content = mmap.mmap(-1, size)
    with contextlib.suppress(AttributeError, OSError):
        content.madvise(mmap.MADV_HUGEPAGE)  # memory comes in larger pieces, in less time
    view = memoryview(content)
    done = 0
    while done < size and (count := os.preadv(stream.fileno(), [view[done:]], done)):
        done += count
    return view.toreadonly(), done


def bytes_of_array(values: Array) -> memoryview:
    """An array's bytes, without a copy where it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def array_of(tensor: TensorProto, data: memoryview | None = None) -> Array:
    """A tensor's values, from `data` where its message holds none; they may share its memory: do not write to them."""
    if data is None:
        return np.asarray(numpy_helper.to_array(tensor))
    if tensor.data_type in _DTYPE_BY_TYPE:
        return np.asarray(np.frombuffer(data, _DTYPE_BY_TYPE[tensor.data_type]).reshape(tensor.dims))
    return np.asarray(numpy_helper.to_array(with_data(tensor, data)))


def with_data(tensor: TensorProto, data: memoryview) -> TensorProto:
    """A message of the tensor that holds its data."""
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=bytes(data))


def own_values(constant: gs.Constant) -> Array:
    """A constant's values in its own type, which need not be one of numpy's; reading `values` would keep what it reads.

    They may share the constant's memory: do not write to them.
    """
    storage = constant._values
    if isinstance(storage, HeldValues):
        return array_of(storage.message, storage.data)
    lazy = getattr(storage, "tensor", None)
    return np.asarray(storage) if lazy is None else array_of(lazy)


def held_constant(name: str, kind: int, values: Array) -> gs.Constant:
    """A constant of one of ONNX's types with the bytes of an array, whose type in numpy may be another one."""
    message = TensorProto(data_type=kind, dims=values.shape)
    return gs.Constant(name, HeldValues(message, bytes_of_array(values)))


class HeldValues(LazyValues):  # type: ignore[misc]
    """A graph's constant whose data is outside of its message."""

    def __init__(self, message: TensorProto, data: memoryview | DeferredData) -> None:
        with G_LOGGER.suppress(G_LOGGER.ERROR):  # it warns of bf16 and e4m3, although it keeps the type
            lazy = LazyValues(message)
        self.shape, self.dtype, self.nbytes = lazy.shape, lazy.dtype, lazy.nbytes
        self.message, self.source = message, data

    @property
    def data(self) -> memoryview:
        """The bytes, read if they are deferred."""
        return self.source.data() if isinstance(self.source, DeferredData) else self.source

    @property
    def tensor(self) -> TensorProto:
        """A message that holds the data: a copy, for code that knows only messages."""
        return with_data(self.message, self.data)

    def load(self) -> Array:
        """The values; not to be written to."""
        return array_of(self.message, self.data) if self.message.data_type in _DTYPE_BY_TYPE else super().load()
