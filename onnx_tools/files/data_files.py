# SPDX-License-Identifier: Apache-2.0
"""Which files hold the weights of a model file, and which of them padfree wrote and may remove."""

from __future__ import annotations

import os
import re
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from .external_data import model_tensors
from .metadata import is_rewritten
from .weights import Weights
from .wire import FileMap, read_model

DIGEST_BYTES = 8


def data_name(file: Path, digest: str) -> str:
    """The name of the file that holds a model's weights, by their digest."""
    return f"{file.name}.{digest}.data"


def locations(file: Path) -> list[str]:
    """The files that hold tensors of a model file, as paths from its folder; none where it is no model."""
    model = _read(file)
    return [] if model is None else _names(model)


def own_data_files(file: Path) -> list[Path]:
    """The data files that padfree wrote along with a model file.

    Their names have the form that `data_name` gives, and the file, which carries padfree's metadata, refers to them.
    Others are somebody else's, whatever they are called; a model file that is a link, or has hard links, keeps its own.
    """
    if file.is_symlink() or not file.is_file() or file.stat().st_nlink > 1:
        return []
    model = _read(file)
    if model is None or not is_rewritten(model):
        return []
    form = re.compile(re.escape(file.name) + rf"\.[0-9a-f]{{{2 * DIGEST_BYTES}}}\.data")
    return [file.with_name(name) for name in _names(model) if form.fullmatch(name)]


def _read(file: Path) -> ModelProto | None:
    """A model file as it is, its large weights left where they lie; None where it cannot be read as one."""
    try:
        with file.open("rb") as stream:
            return read_model(stream, os.fstat(stream.fileno()).st_size, FileMap.of(stream, Weights()))
    except (OSError, DecodeError):
        return None


def _names(model: ModelProto) -> list[str]:
    """The distinct locations of external data, in their order."""
    entries = (
        entry.value
        for tensor in model_tensors(model.graph)
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    )
    return list(dict.fromkeys(entries))
