# SPDX-License-Identifier: Apache-2.0
"""Reading and writing ONNX files: readable errors, external data, and no half-written file, whatever happens."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import FunctionProto, GraphProto, ModelProto, TensorProto
from padfree.contract.file_kinds import other_kind, refuse_special
from padfree.contract.os_errors import room_advice
from padfree.contract.staging import kind_of, stage, write_atomically

from ..errors import ModelFileError
from .data_files import DIGEST_BYTES, data_name, own_data_files
from .data_sizes import check_data, raw_bytes
from .external_data import model_tensors, node_tensors, read_external_data, refer_to, write_aligned
from .model import Model, Piece, add_stub, bytes_in_pieces, without_initializers
from .weights import Storage, Weights
from .wire import FileMap, read_model

# Protobuf messages end at 2 GiB; the difference is for everything but tensors.
EXTERNAL_DATA_BYTES = 2**31 - 64 * 2**20
_ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
_SMALL_TENSOR_BYTES = 1024  # stays in the file
MOST_NODES = 200_000
"""Nodes of a model, subgraphs and functions included: facts about its tensors take some 4 KiB and 0.1 ms a node."""


def _count_nodes(graphs: Iterable[GraphProto | FunctionProto]) -> int:
    """The number of nodes of graphs and of those inside of them; the count ends when they are too many."""
    count, waiting = 0, list(graphs)
    while waiting and count <= MOST_NODES:
        graph = waiting.pop()
        count += len(graph.node)
        if count <= MOST_NODES:
            inner = (attribute for node in graph.node for attribute in node.attribute)
            waiting += [one for attribute in inner for one in (attribute.g, *attribute.graphs) if one.node]
    return count


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # it may not be looked at
        return False


def load_model(path: str | os.PathLike[str]) -> ModelProto:
    """Reads an ONNX model with its external data. Raises ModelFileError as open_model does."""
    return open_model(path, Storage.MESSAGES).proto


def open_model(path: str | os.PathLike[str], storage: Storage = Storage.MAP) -> Model:
    """Reads an ONNX model with its external data; large weights are where `storage` says, if files can be mapped.

    Whoever is done with the model, or with one that was made of it, calls check_files() of its weights.
    Raises ModelFileError when there is no such file (but a pipe, say), when it is no ONNX model or ends early, and when
    external data is missing, too short, of another size than its tensor, or outside the model's folder.
    """
    file, weights = Path(path), Weights(storage)
    if not _is_file(file):
        refuse_special(file, ModelFileError)
        kind = "is a folder" if file.is_dir() else "does not exist"
        raise ModelFileError(f"model file '{file}' {kind}; give the path of an .onnx file")
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            model = Model(read_model(stream, size, FileMap.of(stream, weights)), weights)
    except OSError as error:
        raise ModelFileError(f"model file '{file}' cannot be read: {error.strerror}; check its permissions") from error
    except DecodeError as error:
        if other := other_kind(file):
            raise ModelFileError(f"model file '{file}' {other.what}; {other.advice}") from error
        if file.suffix in _ENGINE_SUFFIXES:
            raise ModelFileError(
                f"model file '{file}' is a TensorRT engine, by its name: weights and kernels of one GPU, without "
                "the model's graph; give the .onnx file or the Hugging Face folder that it was built from "
                "(docs/guide/migrating.md)"
            ) from error
        raise ModelFileError(
            f"model file '{file}' ({size} bytes) is not an ONNX model, or its end is missing; export or copy it again"
        ) from error
    if not size:
        raise ModelFileError(f"model file '{file}' is empty; export or copy it again")
    proto = model.proto
    if not proto.opset_import or not proto.graph.output:
        raise ModelFileError(
            f"model file '{file}' ({size} bytes) has {len(proto.opset_import)} operator sets and "
            f"{len(proto.graph.output)} outputs, a model has at least one of each: it is not an ONNX model, or its end "
            f"is missing; export or copy it again"
        )
    nodes = _count_nodes([proto.graph, *proto.functions])
    if nodes > MOST_NODES:
        raise ModelFileError(
            f"model file '{file}' has {nodes} nodes or more, allowed: {MOST_NODES}; the largest encoders have some ten "
            "thousand: export it again without unrolled loops"
        )
    check_text(proto, f"'{file}'")
    check_model_data(model, f"'{file}'")
    read_external_data(model_tensors(proto.graph), file, weights, initializers=len(proto.graph.initializer))
    return model


def check_text(proto: ModelProto, where: str) -> None:
    """Raises ModelFileError for names that are not text, which protobuf returns as bytes."""
    graph = proto.graph
    texts = [text for node in graph.node for text in (node.name, node.op_type, node.domain, *node.input, *node.output)]
    texts += [attribute.name for node in graph.node for attribute in node.attribute]
    texts += [item.name for items in (graph.initializer, graph.input, graph.output, graph.value_info) for item in items]
    texts += [text for item in proto.metadata_props for text in (item.key, item.value)]
    texts += [item.domain for item in (*proto.opset_import, *proto.functions)]
    for text in texts:
        if not isinstance(text, str):
            raise ModelFileError(
                f"model file {where} holds a name that is no UTF-8 text ({text[:60]!r}): it is damaged; export or copy "
                "it again"
            )


def check_model_data(model: Model, where: str) -> None:
    """Raises ModelFileError where a tensor does not have the data that its type and dims ask for."""
    functions = (node for function in model.proto.functions for node in function.node)
    check_data(itertools.chain(model_tensors(model.proto.graph), node_tensors(functions)), where, model.weights)


def save_model(
    model: ModelProto | Model, path: str | os.PathLike[str], *, external_data_bytes: int = EXTERNAL_DATA_BYTES
) -> None:
    """Writes a model, all of it or nothing: the file that was there stays until the new one is complete.

    Weights outside of the model's message are written from where they lie; their files are checked then (check_files).

    Tensors of more than `external_data_bytes` in all go to `<name>.<digest>.data` next to the model. Such files of a
    model that was there before are removed if padfree wrote it and it refers to them. The argument is not changed.
    Raises ModelFileError when a file cannot be written (no space, no permission), or a device or a pipe stands there.
    """
    file, source = Path(path), model if isinstance(model, Model) else Model(model)
    large = [
        tensor for tensor in model_tensors(source.proto.graph) if _size(tensor, source.weights) > _SMALL_TENSOR_BYTES
    ]
    data_file: Path | None = None
    paths: list[Path] = []
    try:
        if kind := kind_of(file):
            raise ModelFileError(f"'{file}' is {kind}; give the path of a file to write")
        stale = own_data_files(file)
        if sum(_size(tensor, source.weights) for tensor in large) > external_data_bytes:
            data_stage, data_file, ranges = _write_data(large, file, source.weights)
            paths.append(data_stage)
            if not os.path.lexists(data_file):  # otherwise a model that is there has the same weights
                paths.append(data_file)
            data_stage.replace(data_file)
            pieces: Iterable[Piece] = (_outside(source, data_file.name, ranges).SerializeToString(),)
        elif isinstance(model, Model):
            _, pieces = bytes_in_pieces(model)
        else:
            pieces = (model.SerializeToString(),)
        write_atomically(file, partial(_write_pieces, pieces, source.weights))
    except BaseException as error:
        for path_made in paths:
            path_made.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise ModelFileError(
            f"'{file}' cannot be written: {error.strerror}; nothing was changed; {room_advice(file)}"
        ) from error
    for old in stale:
        if old != data_file:
            old.unlink(missing_ok=True)


def _size(tensor: TensorProto, weights: Weights) -> int:
    """The bytes of a tensor's data that may go to another file."""
    size = weights.size_of(tensor)
    return raw_bytes(tensor) if size is None else size


def _write_pieces(pieces: Iterable[Piece], weights: Weights, stream: BinaryIO) -> None:
    stream.writelines(pieces)
    weights.check_files()


def _write_data(tensors: list[TensorProto], file: Path, weights: Weights) -> tuple[Path, Path, list[tuple[int, int]]]:
    """Writes the tensors' bytes next to `file`; returns where, what to rename that to, and offsets and lengths."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    ranges: list[tuple[int, int]] = []

    def write(stream: BinaryIO) -> None:
        for tensor in tensors:
            data = weights.data_of(tensor)
            content = tensor.raw_data if data is None else data
            digest.update(content)
            ranges.append(write_aligned(stream, content))
        weights.check_files()

    data_stage = stage(file, write)
    return data_stage, file.with_name(data_name(file, digest.hexdigest())), ranges


def _outside(source: Model, location: str, ranges: list[tuple[int, int]]) -> ModelProto:
    """A copy of the model's message without its large tensors' bytes, which lie at `ranges` of the data file."""
    model, weights = source.proto, source.weights
    result = without_initializers(model)
    for tensor in model.graph.initializer:
        if _size(tensor, weights) > _SMALL_TENSOR_BYTES:
            add_stub(result.graph, tensor)
        else:
            result.graph.initializer.append(tensor)
    remaining = iter(ranges)
    for tensor, copy in zip(model_tensors(model.graph), model_tensors(result.graph), strict=True):
        if _size(tensor, weights) > _SMALL_TENSOR_BYTES:
            copy.ClearField("raw_data")
            refer_to(copy, location, next(remaining))
    return result
