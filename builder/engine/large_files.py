# SPDX-License-Identifier: Apache-2.0
"""Models beyond protobuf's 2 GB, as files from which TensorRT's parser reads them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from padfree.onnx_tools.files import Model, write_model

from ..errors import BuildError


def write_aside(model: Model) -> Path:
    """Writes a model, with its weights beside it, into a new folder for temporary files, weight by weight.

    Raises:
        BuildError: there is no room; the message says for how much.
    """
    file = Path(tempfile.mkdtemp(prefix="padfree-")) / "model.onnx"
    try:
        write_model(model, file)
    except OSError as error:
        size = sum(model.weights.size_of(tensor) or 0 for tensor in model.proto.graph.initializer)
        remove_model(file)
        raise BuildError(
            f"{file.parent}: the model's {size / 1e9:.1f} GB cannot be written there ({error.strerror}), from where "
            "TensorRT reads them; set TMPDIR to a folder with room"
        ) from error
    return file


def remove_model(file: Path) -> None:
    """Removes what `write_aside` wrote, its folder included."""
    shutil.rmtree(file.parent, ignore_errors=True)


def size_of_model(file: Path) -> int:
    """The bytes of a model's files, weights included."""
    return sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
