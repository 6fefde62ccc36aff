# SPDX-License-Identifier: Apache-2.0
"""What TensorRT's parser gets of a model, in one message."""

from __future__ import annotations

from pathlib import Path

import onnx
from padfree.builder.engine.options import BuildOptions
from padfree.builder.engine.preparation import AskDevice, prepare
from padfree.onnx_tools.files import Model, Storage, open_model


def prepare_model(model: str | Path | onnx.ModelProto, options: BuildOptions, device: AskDevice) -> onnx.ModelProto:
    """As prepare, but from a file, whose weights are read into memory, or a message, to a message with all weights."""
    model_file = Model.of(model) if isinstance(model, onnx.ModelProto) else open_model(model, Storage.MEMORY)
    preparation = prepare(model_file, options, device).model
    result = preparation.whole()
    preparation.weights.check_files()
    return result
