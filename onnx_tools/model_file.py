# SPDX-License-Identifier: Apache-2.0
"""Reading and writing ONNX files: readable errors, external data, and no half-written file, whatever happens."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, TensorProto

from .errors import ModelFileError

# Protobuf messages end at 2 GiB; the rest is for what is no tensor.
EXTERNAL_DATA_BYTES = 2**31 - 64 * 2**20
_SMALL_TENSOR_BYTES = 1024  # stays in the file
_ALIGNMENT_BYTES = 4096  # lets readers map tensors into memory


def load_model(path: str | os.PathLike[str]) -> ModelProto:
    """Reads an ONNX model with its external data.

    Raises ModelFileError when there is no such file, when it is no ONNX model or ends early, and when external data is
    missing, too short or outside the model's folder.
    """
    file = Path(path)
    if not file.is_file():
        kind = "is a folder" if file.is_dir() else "does not exist"
        raise ModelFileError(f"model file '{file}' {kind}; give the path of an .onnx file")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ModelFileError(f"model file '{file}' cannot be read: {error.strerror}; check its permissions") from error
    if not content:
        raise ModelFileError(f"model file '{file}' is empty; export or copy it again")
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise ModelFileError(
            f"model file '{file}' ({len(content)} bytes) is not an ONNX model, or its end is missing; "
            f"export or copy it again"
        ) from error
    if not model.opset_import or not model.graph.output:
        raise ModelFileError(
            f"model file '{file}' ({len(content)} bytes) has {len(model.opset_import)} operator sets and "
            f"{len(model.graph.output)} outputs, a model has at least one of each: it is not an ONNX model, or its end "
            f"is missing; export or copy it again"
        )
    _load_external_data(model, file)
    return model


def save_model(
    model: ModelProto, path: str | os.PathLike[str], *, external_data_bytes: int = EXTERNAL_DATA_BYTES
) -> None:
    """Writes a model: all of it or nothing, the file that was there stays until the new one is complete.

    Tensors of more than `external_data_bytes` in all go to `<name>.<digest>.data` beside the model; such files of a
    model that was there before are removed. The model itself is left as it is.
    Raises ModelFileError when a file cannot be written (no space, no permission).
    """
    file = Path(path)
    if file.is_dir():
        raise ModelFileError(f"'{file}' is a folder; give the path of a file to write")
    tensors = [tensor for tensor in model_tensors(model.graph) if len(tensor.raw_data) > _SMALL_TENSOR_BYTES]
    data_file: Path | None = None
    try:
        if sum(len(tensor.raw_data) for tensor in tensors) > external_data_bytes:
            data_file, placed = _write_data(tensors, file)
            with _moved_out(tensors, data_file.name, placed):
                content = model.SerializeToString()
        else:
            content = model.SerializeToString()
        write_atomically(file, lambda stream: stream.write(content))
    except OSError as error:
        if data_file is not None:
            data_file.unlink(missing_ok=True)
        raise ModelFileError(
            f"'{file}' cannot be written: {error.strerror}; nothing was changed; free space in '{file.parent}' or "
            f"choose another folder"
        ) from error
    for stale in file.parent.glob(f"{_escape(file.name)}.*.data"):
        if stale != data_file:
            stale.unlink(missing_ok=True)


def write_atomically(file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` with a stream; the file appears, or is replaced, only when all is on the disk. Raises OSError."""
    aside = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        with aside.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)


def model_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph: initializers and attributes, subgraphs included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from model_tensors(attribute.g)
            for subgraph in attribute.graphs:
                yield from model_tensors(subgraph)


def _load_external_data(model: ModelProto, file: Path) -> None:
    folder = file.parent.resolve()
    contents: dict[Path, memoryview] = {}
    for tensor in model_tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        data = (folder / location).resolve()
        if not location or not data.is_relative_to(folder):
            raise ModelFileError(
                f"tensor '{tensor.name}' of '{file}' has its data in '{location}', allowed is a file in the model's "
                f"folder; move it there and save the model again"
            )
        if data not in contents:
            try:
                contents[data] = memoryview(data.read_bytes())
            except OSError as error:
                raise ModelFileError(
                    f"tensor '{tensor.name}' of '{file}' has its data in '{location}', which cannot be read: "
                    f"{error.strerror}; put it beside the model file"
                ) from error
        content = contents[data]
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries["length"]) if "length" in entries else len(content) - offset
        except ValueError as error:
            raise ModelFileError(
                f"tensor '{tensor.name}' of '{file}' has an offset or length that is no number; export it again"
            ) from error
        if offset < 0 or length < 0 or offset + length > len(content):
            raise ModelFileError(
                f"tensor '{tensor.name}' of '{file}' is at bytes {offset} to {offset + length} of '{location}', which "
                f"has {len(content)}; copy that file again"
            )
        tensor.raw_data = bytes(content[offset : offset + length])
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def _write_data(tensors: list[TensorProto], file: Path) -> tuple[Path, list[tuple[int, int]]]:
    """Writes the tensors' bytes to a file named after its content; returns it and each tensor's offset and length."""
    digest = hashlib.blake2b(digest_size=8)
    placed: list[tuple[int, int]] = []
    offset = 0
    for tensor in tensors:
        digest.update(tensor.raw_data)
        offset = -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        placed.append((offset, len(tensor.raw_data)))
        offset += len(tensor.raw_data)
    data_file = file.with_name(f"{file.name}.{digest.hexdigest()}.data")

    def write(stream: BinaryIO) -> None:
        for tensor, (start, _) in zip(tensors, placed, strict=True):
            stream.write(bytes(start - stream.tell()))
            stream.write(tensor.raw_data)

    write_atomically(data_file, write)
    return data_file, placed


@contextlib.contextmanager
def _moved_out(tensors: list[TensorProto], location: str, placed: list[tuple[int, int]]) -> Iterator[None]:
    """Inside, the tensors refer to the data file; afterwards they hold their bytes again."""
    held = [tensor.raw_data for tensor in tensors]
    try:
        for tensor, (offset, length) in zip(tensors, placed, strict=True):
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", location), ("offset", offset), ("length", length)):
                tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=str(value)))
        yield
    finally:
        for tensor, content in zip(tensors, held, strict=True):
            tensor.raw_data = content
            tensor.ClearField("data_location")
            del tensor.external_data[:]


def _escape(name: str) -> str:
    """For glob: brackets, stars and question marks in a file name stand for themselves."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
