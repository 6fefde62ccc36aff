# SPDX-License-Identifier: Apache-2.0
"""Writes a model whose weights lie outside of its message into a scratch folder, weight by weight.

Nobody else reads there, so files are written in place and have plain names; see model_file.py for users' files.
"""

from __future__ import annotations

from pathlib import Path

from padfree.contract.os_errors import errors_of

from .data_sizes import raw_bytes
from .external_data import model_tensors, refer_to, write_aligned
from .model import Model, add_stub, bytes_in_pieces, without_initializers
from .model_file import EXTERNAL_DATA_BYTES


def write_model(model: Model, file: Path, *, external_data_bytes: int = EXTERNAL_DATA_BYTES) -> None:
    """Writes a model; weights of more than `external_data_bytes` in all go to `<name>.data` next to it.

    Raises:
        OSError: no space, or no permission; it names the file.
    """
    with errors_of(file):
        _write(model, file, external_data_bytes)


def _write(model: Model, file: Path, external_data_bytes: int) -> None:
    outside = sum(model.weights.size_of(tensor) or 0 for tensor in model.proto.graph.initializer)
    inside = sum(raw_bytes(tensor) for tensor in model_tensors(model.proto.graph))
    if outside + inside <= external_data_bytes:
        _, pieces = bytes_in_pieces(model)
        with file.open("wb") as stream:
            stream.writelines(pieces)
        return
    result = without_initializers(model.proto)
    with file.with_name(f"{file.name}.data").open("wb") as stream:
        for tensor in model.proto.graph.initializer:
            data = model.weights.data_of(tensor)
            if data is None:
                result.graph.initializer.append(tensor)
                continue
            refer_to(add_stub(result.graph, tensor), f"{file.name}.data", write_aligned(stream, data))
    file.write_bytes(result.SerializeToString())
