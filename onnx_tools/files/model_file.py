# SPDX-License-Identifier: Apache-2.0
"""Reading and writing ONNX files: readable errors, external data, and no half-written file, whatever happens."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, TensorProto

from ..errors import ModelFileError
from .data_files import DIGEST_BYTES, data_name, own_data_files
from .data_sizes import bytes_of, check_data
from .external_data import model_tensors, node_tensors, read_external_data
from .staging import kind_of, stage, write_atomically
from .weights import LARGE_BYTES, Weights, data_in
from .wire import Mapped, message_head, read_model

# Protobuf messages end at 2 GiB; the rest is for what is no tensor.
EXTERNAL_DATA_BYTES = 2**31 - 64 * 2**20
_SMALL_TENSOR_BYTES = 1024  # stays in the file
_ALIGNMENT_BYTES = 4096  # lets readers map tensors into memory

Piece = bytes | memoryview


def load_model(path: str | os.PathLike[str], weights: Weights | None = None) -> ModelProto:
    """Reads an ONNX model with its external data.

    With `weights`, large weights stay in their files, where these can be mapped into memory: it holds them instead of
    the model.
    Raises ModelFileError when there is no such file, when it is no ONNX model or ends early, and when external data is
    missing, too short, of another size than its tensor, or outside the model's folder.
    """
    file = Path(path)
    if not file.is_file():
        kind = "is a folder" if file.is_dir() else "does not exist"
        raise ModelFileError(f"model file '{file}' {kind}; give the path of an .onnx file")
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            model = read_model(stream, size, _mapped(stream, weights))
    except OSError as error:
        raise ModelFileError(f"model file '{file}' cannot be read: {error.strerror}; check its permissions") from error
    except DecodeError as error:
        raise ModelFileError(
            f"model file '{file}' ({size} bytes) is not an ONNX model, or its end is missing; export or copy it again"
        ) from error
    if not size:
        raise ModelFileError(f"model file '{file}' is empty; export or copy it again")
    if not model.opset_import or not model.graph.output:
        raise ModelFileError(
            f"model file '{file}' ({size} bytes) has {len(model.opset_import)} operator sets and "
            f"{len(model.graph.output)} outputs, a model has at least one of each: it is not an ONNX model, or its end "
            f"is missing; export or copy it again"
        )
    check_model_data(model, f"'{file}'", weights)
    read_external_data(model_tensors(model.graph), file, weights, initializers=len(model.graph.initializer))
    return model


def check_model_data(model: ModelProto, where: str, weights: Weights | None = None) -> None:
    """Raises ModelFileError where a tensor in a message has not the data that its type and dims ask for."""
    functions = (node for function in model.functions for node in function.node)
    check_data(itertools.chain(model_tensors(model.graph), node_tensors(functions)), where, weights)


def _mapped(stream: BinaryIO, weights: Weights | None) -> Mapped | None:
    content = None if weights is None else weights.map_file(stream)
    return None if weights is None or content is None else Mapped(content, weights)


def save_model(
    model: ModelProto, path: str | os.PathLike[str], *, external_data_bytes: int = EXTERNAL_DATA_BYTES
) -> None:
    """Writes a model: all of it or nothing, the file that was there stays until the new one is complete.

    Tensors of more than `external_data_bytes` in all go to `<name>.<digest>.data` beside the model. Of a model that was
    there before, such files are removed, if padfree wrote it and it refers to them. The model itself is left as it is.
    Raises ModelFileError when a file cannot be written (no space, no permission), or a device or a pipe stands there.
    """
    file = Path(path)
    large = [tensor for tensor in model_tensors(model.graph) if _is_large(tensor)]
    data_file: Path | None = None
    made: list[Path] = []
    try:
        if kind := kind_of(file):
            raise ModelFileError(f"'{file}' is {kind}; give the path of a file to write")
        stale = own_data_files(file)
        if sum(raw_bytes(tensor) for tensor in large) > external_data_bytes:
            staged, data_file, places = _write_data(large, file)
            made.append(staged)
            if not os.path.lexists(data_file):  # else a model that is there has the same weights
                made.append(data_file)
            staged.replace(data_file)
            content = _outside(model, data_file.name, places).SerializeToString()
        else:
            content = model.SerializeToString()
        write_atomically(file, lambda stream: stream.write(content))
    except BaseException as error:
        for path_made in made:
            path_made.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise ModelFileError(
            f"'{file}' cannot be written: {error.strerror}; nothing was changed; free space in '{file.parent}' or "
            f"choose another folder"
        ) from error
    for old in stale:
        if old != data_file:
            old.unlink(missing_ok=True)


def _is_large(tensor: TensorProto) -> bool:
    """Whether the tensor's bytes may go to another file."""
    return raw_bytes(tensor) > _SMALL_TENSOR_BYTES


def raw_bytes(tensor: TensorProto) -> int:
    """The length of `raw_data`, told from type and shape: looking at it would copy it."""
    if not tensor.HasField("raw_data"):
        return 0
    size = bytes_of(tensor)
    return len(tensor.raw_data) if size is None else size


def _write_data(tensors: list[TensorProto], file: Path) -> tuple[Path, Path, list[tuple[int, int]]]:
    """Writes the tensors' bytes beside `file`; returns where, what to rename that to, and offsets and lengths."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    places: list[tuple[int, int]] = []

    def write(stream: BinaryIO) -> None:
        for tensor in tensors:
            content = tensor.raw_data
            digest.update(content)
            stream.write(bytes(-stream.tell() % _ALIGNMENT_BYTES))
            places.append((stream.tell(), len(content)))
            stream.write(content)

    staged = stage(file, write)
    return staged, file.with_name(data_name(file, digest.hexdigest())), places


def _outside(model: ModelProto, location: str, places: list[tuple[int, int]]) -> ModelProto:
    """A copy of the model without its large tensors' bytes, which lie at `places` of the data file."""
    result = without_initializers(model)
    for tensor in model.graph.initializer:
        copy = result.graph.initializer.add()
        if _is_large(tensor):
            copy.name, copy.data_type = tensor.name, tensor.data_type
            copy.dims.extend(tensor.dims)
        else:
            copy.CopyFrom(tensor)
    left = iter(places)
    for tensor, copy in zip(model_tensors(model.graph), model_tensors(result.graph), strict=True):
        if _is_large(tensor):
            copy.ClearField("raw_data")
            copy.data_location = TensorProto.EXTERNAL
            for key, value in zip(("location", "offset", "length"), (location, *next(left)), strict=True):
                copy.external_data.append(onnx.StringStringEntryProto(key=key, value=str(value)))
    return result


def without_initializers(model: ModelProto) -> ModelProto:
    """A copy of the model without its weights, which are most of it."""
    result = ModelProto()
    _copy_fields(model, result, "graph")
    _copy_fields(model.graph, result.graph, "initializer")
    return result


def without_large_data(model: ModelProto, weights: Weights) -> ModelProto:
    """A copy of the model whose large weights are held by `weights` instead."""
    result = without_initializers(model)
    for tensor in model.graph.initializer:
        if tensor.HasField("raw_data") and raw_bytes(tensor) >= LARGE_BYTES:
            copy = result.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            weights.hold(copy, memoryview(tensor.raw_data))
        else:
            result.graph.initializer.append(tensor)
    return result


def with_large_data(model: ModelProto, weights: Weights) -> ModelProto:
    """A copy of the model with all of its weights in it: those that `weights` holds too."""
    result = without_initializers(model)
    for tensor in model.graph.initializer:
        data = weights.data_of(tensor)
        if data is None:
            result.graph.initializer.append(tensor)
        else:  # protobuf appends messages through their bytes, which end at 2 GB
            copy = result.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            copy.raw_data = bytes(data)
    return result


def bytes_in_pieces(model: ModelProto, weights: Weights | None = None) -> tuple[int, Iterator[Piece]]:
    """How many bytes a model takes, and these bytes, the weights one by one; `weights` has what the model has not.

    Their length stands in front of them: each that is in the model is serialised twice, so that they are never held all
    at once.
    """
    skeleton = without_initializers(model)
    graph = skeleton.graph.SerializeToString()
    skeleton.ClearField("graph")
    sizes = [sum(map(len, _tensor_pieces(tensor, weights))) for tensor in model.graph.initializer]
    heads = [message_head(GraphProto.INITIALIZER_FIELD_NUMBER, size) for size in sizes]
    total = sum(sizes) + sum(map(len, heads))
    begin = skeleton.SerializeToString() + message_head(ModelProto.GRAPH_FIELD_NUMBER, len(graph) + total) + graph

    def pieces() -> Iterator[Piece]:
        yield begin
        for head, tensor in zip(heads, model.graph.initializer, strict=True):
            yield head
            yield from _tensor_pieces(tensor, weights)

    return len(begin) + total, pieces()


def _tensor_pieces(tensor: TensorProto, weights: Weights | None) -> Iterator[Piece]:
    """The bytes of a tensor's message, with the data that it holds or that is held for it."""
    data = data_in(weights, tensor)
    if data is None:
        yield tensor.SerializeToString()
        return
    described = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    yield described.SerializeToString() + message_head(TensorProto.RAW_DATA_FIELD_NUMBER, len(data))
    yield data


def _copy_fields(source: Message, target: Message, without: str) -> None:
    """Copies all fields of a message but one."""
    for field, value in source.ListFields():
        if field.name != without:
            if hasattr(value, "MergeFrom"):  # a message, or a list
                getattr(target, field.name).MergeFrom(value)
            else:
                setattr(target, field.name, value)
