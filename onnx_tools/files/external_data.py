# SPDX-License-Identifier: Apache-2.0
"""Tensors whose data lies in files next to the model."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from onnx import GraphProto, NodeProto, StringStringEntryProto, TensorProto
from padfree.contract.file_kinds import LINK, other_kind

from ..errors import ModelFileError
from .data_sizes import bytes_of
from .weights import LARGE_BYTES, Weights

_ALIGNMENT_BYTES = 4096  # lets readers map tensors into memory
_MOST_READS = 4  # times that a data file may be read: tensors overlap in it where weights are tied


def read_external_data(tensors: Iterable[TensorProto], file: Path, weights: Weights, *, initializers: int) -> None:
    """Reads the tensors that lie outside the model's file into it, one by one, so that nothing is held twice.

    `weights`, which may have some already, holds the large ones of the first `initializers` where its storage says so.
    Raises ModelFileError for data that is missing, outside the model's folder, or of another size than its tensor.
    """
    sizes: dict[Path, int] = {}
    views: dict[Path, memoryview | None] = {}
    total = 0
    for number, tensor in enumerate(tensors):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        if tensor in weights:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        data = _data_file(file, tensor.name, entries.get("location", ""))
        if data not in sizes and other_kind(data) == LINK:
            raise ModelFileError(f"data file '{data}' {LINK.what}; {LINK.advice}")
        sizes[data] = data.stat().st_size
        offset, length = _extent(tensor, entries, sizes[data], file)
        total += length
        if total > _MOST_READS * sum(sizes.values()):
            raise ModelFileError(
                f"the tensors of '{file}' up to '{tensor.name}' take {total} bytes from data files of "
                f"{sum(sizes.values())}, allowed is {_MOST_READS} times their size; they overlap: export "
                "it again"
            )
        try:
            with data.open("rb") as stream:
                if number < initializers and length >= LARGE_BYTES:
                    if data not in views:
                        views[data] = weights.map_file(stream)
                    if (content := views[data]) is not None:
                        weights.hold(tensor, content[offset : offset + length])
                        continue
                stream.seek(offset)
                tensor.raw_data = stream.read(length)
        except OSError as error:
            raise _unreadable(file, tensor.name, entries["location"], error) from error
        tensor.ClearField("data_location")
        del tensor.external_data[:]


def _data_file(file: Path, name: str, location: str) -> Path:
    """The file that holds a tensor's data: one in the model's folder, or next to the file that the model links to.

    The latter is so in the caches of model hubs: links to files that lie side by side under other names.
    """
    folders = {file.parent.resolve(), file.resolve().parent}
    try:
        data = (file.parent / location).resolve()
    except (OSError, RuntimeError):  # links in a circle
        data = file.parent / location
    except ValueError as error:  # no path has a NUL in it
        raise ModelFileError(
            f"tensor '{name}' of '{file}' has its data in {location!a}, which is no file's name; export it again"
        ) from error
    plain = bool(location) and not Path(location).is_absolute() and ".." not in Path(location).parts
    if not plain or not any(data.is_relative_to(folder) for folder in folders):
        where = f", which is '{data}'" if plain else ""
        raise ModelFileError(
            f"tensor '{name}' of '{file}' has its data in '{location}'{where}, allowed is a file in the model's "
            f"folder; copy it there and save the model again"
        )
    try:
        kind = data.stat().st_mode
    except OSError as error:
        raise _unreadable(file, name, location, error) from error
    if not stat.S_ISREG(kind):
        raise ModelFileError(
            f"tensor '{name}' of '{file}' has its data in '{location}', which is no regular file; export it again"
        )
    return data


def _unreadable(file: Path, name: str, location: str, error: OSError) -> ModelFileError:
    return ModelFileError(
        f"tensor '{name}' of '{file}' has its data in '{location}', which cannot be read: {error.strerror}; put it "
        "beside the model file"
    )


def _extent(tensor: TensorProto, entries: Mapping[str, str], size: int, file: Path) -> tuple[int, int]:
    """Offset and length of a tensor's data in a file of `size` bytes."""
    location = entries["location"]
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries["length"]) if "length" in entries else size - offset
    except ValueError as error:
        raise ModelFileError(
            f"tensor '{tensor.name}' of '{file}' has an offset or length that is no number; export it again"
        ) from error
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelFileError(
            f"tensor '{tensor.name}' of '{file}' is at bytes {offset} to {offset + length} of '{location}', which "
            f"has {size}; copy that file again"
        )
    size_bytes = bytes_of(tensor)
    if size_bytes is not None and length != size_bytes:
        dims = ", ".join(str(size) for size in tensor.dims)
        raise ModelFileError(
            f"tensor '{tensor.name}' of '{file}' is {TensorProto.DataType.Name(tensor.data_type)} [{dims}], "
            f"{size_bytes} bytes, and has {length} in '{location}'; export it again"
        )
    return offset, length


def model_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph: initializers and attributes, subgraphs included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from node_tensors(graph.node)


def node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Every tensor in the attributes of nodes, subgraphs included."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            if attribute.HasField("g"):
                yield from model_tensors(attribute.g)
            for subgraph in attribute.graphs:
                yield from model_tensors(subgraph)


def write_aligned(stream: BinaryIO, data: bytes | memoryview) -> tuple[int, int]:
    """Writes a tensor's data where readers can map it into memory; returns the offset and the length in bytes."""
    stream.write(bytes(-stream.tell() % _ALIGNMENT_BYTES))
    offset = stream.tell()
    stream.write(data)
    return offset, stream.tell() - offset


def refer_to(tensor: TensorProto, location: str, extent: tuple[int, int]) -> None:
    """Lets a tensor without data refer to an offset and a length, in bytes, of the file `location` beside the model."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in zip(("location", "offset", "length"), (location, *extent), strict=True):
        tensor.external_data.append(StringStringEntryProto(key=key, value=str(value)))
