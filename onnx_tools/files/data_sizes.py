# SPDX-License-Identifier: Apache-2.0
"""Checks that tensors have the data that their types and dims ask for, before anything makes room for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from onnx import TensorProto, helper

from ..errors import ModelFileError
from .weights import LARGE_BYTES, Weights
from .wire import message_head


def check_data(tensors: Iterable[TensorProto], where: str, weights: Weights) -> None:
    """Compares the data that tensors hold, or that is held for them, with type and dims.

    Data in other files is left to `read_external_data`.

    Args:
        tensors: a model's.
        where: what messages call the model.
        weights: holds what the messages do not.

    Raises:
        ModelFileError: a tensor has more or less data, or a negative size.
    """
    for tensor in tensors:
        held_size = weights.size_of(tensor)
        if held_size is None and tensor.data_location == TensorProto.EXTERNAL:
            continue
        if min(tensor.dims, default=0) < 0:
            raise ModelFileError(
                f"tensor '{tensor.name}' of {where} has the sizes {list(tensor.dims)}, allowed are 0 and more; export "
                "it again"
            )
        size_bytes = bytes_of(tensor)
        if held_size is not None or tensor.HasField("raw_data"):
            if size_bytes is None:
                continue  # onnx itself refuses types that have no such data
            size_read, unit = size_bytes, "bytes"
            size = held_size if held_size is not None else _size_of(tensor, size_read)
        else:
            if size_bytes is None and tensor.data_type != TensorProto.STRING:
                continue
            size_read, unit = math.prod(tensor.dims), "values"
            size = _values(tensor, size_read, size_bytes)
        if size != size_read:
            raise ModelFileError(
                f"tensor '{tensor.name}' of {where} is {TensorProto.DataType.Name(tensor.data_type)} "
                f"{list(tensor.dims)}, {size_read} {unit}, and has {size}; export it again"
            )


def bytes_of(tensor: TensorProto) -> int | None:
    """The bytes that type and dims make; None for strings, and for types that onnx does not know."""
    bits = _bits(tensor.data_type)
    return None if bits is None else -(-math.prod(tensor.dims) * bits // 8)


@functools.cache
def _bits(kind: int) -> int | None:
    """The bits of one element; None where `bytes_of` gives None."""
    if kind == TensorProto.STRING or kind not in TensorProto.DataType.values():
        return None
    name = TensorProto.DataType.Name(kind)
    if name.endswith(("INT4", "4E2M1")):
        return 4
    if name.endswith("INT2"):
        return 2
    try:
        return int(helper.tensor_dtype_to_np_dtype(kind).itemsize) * 8
    except KeyError:
        return None


def raw_bytes(tensor: TensorProto) -> int:
    """The length of `raw_data` by type and shape, as reading the field would copy it."""
    if not tensor.HasField("raw_data"):
        return 0
    size = bytes_of(tensor)
    return len(tensor.raw_data) if size is None else size


def _size_of(tensor: TensorProto, size_bytes: int) -> int:
    """The length of `raw_data`; large data, which reading would copy, is first compared by the message's size."""
    if size_bytes >= LARGE_BYTES:
        others = TensorProto(
            name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, doc_string=tensor.doc_string
        )
        if not tensor.HasField("doc_string"):
            others.ClearField("doc_string")
        head = len(message_head(TensorProto.RAW_DATA_FIELD_NUMBER, size_bytes))
        if tensor.ByteSize() == others.ByteSize() + head + size_bytes:
            return size_bytes
    return len(tensor.raw_data)


def _values(tensor: TensorProto, elements: int, size_bytes: int | None) -> int:
    """How many elements the message has as numbers or strings."""
    count = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
    if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return count // 2
    if size_bytes is not None and size_bytes < elements and count == size_bytes:
        return elements  # a number holds several
    return count
