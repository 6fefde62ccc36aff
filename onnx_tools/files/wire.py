# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the weights of ONNX files one by one, in protobuf's wire format.

Read or written all at once, they would be in memory twice, and fresh memory takes longer than the copies themselves.
https://protobuf.dev/programming-guides/encoding describes the format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, TensorProto

from .weights import LARGE_BYTES, Weights

_GRAPH, _INITIALIZER = ModelProto.GRAPH_FIELD_NUMBER, GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER
_VARINT, _EIGHT_BYTES, _WITH_LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_FIXED_BYTES = {_VARINT: 0, _EIGHT_BYTES: 8, _FOUR_BYTES: 4}
"""Bytes after the head of a field, by its kind; a varint is part of the head."""
_MOST_VARINT_BYTES = 10


@dataclass(frozen=True)
class FileMap:
    """A file's bytes, mapped into memory, and the Weights that are to hold its large ones."""

    content: memoryview
    weights: Weights

    @classmethod
    def of(cls, stream: BinaryIO, weights: Weights) -> FileMap | None:
        """The map of an open file; None where `weights` does not map it."""
        content = weights.map_file(stream)
        return None if content is None else cls(content, weights)


def read_model(stream: BinaryIO, size: int, file_map: FileMap | None = None) -> ModelProto:
    """The model in the next `size` bytes of a stream. Raises DecodeError where they are no model.

    With `file_map` the stream is a file, whose large weights stay where they are.
    """
    model = ModelProto()

    def read_graph(length: int) -> None:
        model.graph.SetInParent()
        _read_graph(stream, length, model.graph, file_map)

    _merge(stream, size, model, _GRAPH, read_graph)
    return model


def _read_graph(stream: BinaryIO, size: int, graph: GraphProto, file_map: FileMap | None) -> None:
    def read_initializer(length: int) -> None:
        tensor = graph.initializer.add()
        if file_map is None or length < LARGE_BYTES:
            tensor.MergeFromString(_take(stream, length))
        else:
            _read_tensor(stream, length, tensor, file_map)

    _merge(stream, size, graph, _INITIALIZER, read_initializer)


def _read_tensor(stream: BinaryIO, size: int, tensor: TensorProto, file_map: FileMap) -> None:
    data = memoryview(b"")

    def find_data(length: int) -> None:
        nonlocal data
        data = file_map.content[stream.tell() : stream.tell() + length]
        stream.seek(length, os.SEEK_CUR)

    _merge(stream, size, tensor, _RAW_DATA, find_data)
    if data and tensor.data_location != TensorProto.EXTERNAL:
        file_map.weights.hold(tensor, data)


def _merge(stream: BinaryIO, size: int, message: Message, apart: int, read_bytes: Callable[[int], None]) -> None:
    """Merges `size` bytes of a stream into a message; `read_bytes` reads the field `apart`, given its length."""
    rest = bytearray()
    for number, head, length in _fields(stream, size):
        if number == apart:
            read_bytes(length)
        else:
            rest += head + _take(stream, length)
    message.MergeFromString(bytes(rest))


def _fields(stream: BinaryIO, size: int) -> Iterator[tuple[int, bytes, int]]:
    """Number, head and length of every field in `size` bytes; the caller reads what follows the head.

    The number is 0 for fields that cannot be messages.
    """
    remaining = size
    while remaining > 0:
        key, head = _varint(stream)
        kind = key & 7
        if kind == _WITH_LENGTH:
            length, more = _varint(stream)
            head += more
        elif kind in _FIXED_BYTES:
            length = _FIXED_BYTES[kind]
            head += _varint(stream)[1] if kind == _VARINT else b""
        else:
            raise DecodeError(f"a field of kind {kind}")
        remaining -= len(head) + length
        if remaining < 0:
            raise DecodeError(f"a field ends {-remaining} bytes after the message that it is in")
        yield key >> 3 if kind == _WITH_LENGTH else 0, head, length


def _varint(stream: BinaryIO) -> tuple[int, bytes]:
    """A number that has 7 bits in each byte, and its bytes."""
    value, content = 0, b""
    while len(content) < _MOST_VARINT_BYTES:
        content += _take(stream, 1)
        value |= (content[-1] & 0x7F) << 7 * (len(content) - 1)
        if content[-1] < 0x80:
            return value, content
    raise DecodeError(f"a number of more than {_MOST_VARINT_BYTES} bytes")


def _take(stream: BinaryIO, length: int) -> bytes:
    content = stream.read(length)
    if len(content) < length:
        raise DecodeError(f"{length - len(content)} bytes are missing")
    return content


def message_head(number: int, length: int) -> bytes:
    """The bytes before a message of `length` bytes in the field of this number."""
    return _number(number << 3 | _WITH_LENGTH) + _number(length)


def _number(value: int) -> bytes:
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)
