# SPDX-License-Identifier: Apache-2.0
"""The command that looks into an engine which gives wrong answers, for the files that are there."""

from __future__ import annotations

import shlex
from pathlib import Path

import onnx
from padfree.contract.metadata import Metadata
from padfree.onnx_tools.files.metadata import is_rewritten
from padfree.onnx_tools.files.model_file import open_model

PACKED = "packed.onnx"
UNKNOWN = "model.onnx"


def compare_command(
    model: str | Path | onnx.ModelProto, origin: str | Path | None, metadata: Metadata, *, device: int, mask: str | None
) -> str:
    """`padfree compare` for the model that an engine was built from; it builds engines that give inner tensors, too.

    Args:
        model: what the engine was built from.
        origin: what that was made from, or the name under which users know it; None: they know `model`.
        metadata: of the rewritten model.
        device: CUDA device number.
        mask: the padding mask's input, where the user named it.
    """
    look = ["--runners", "trt", "--bisect", *(["--device", str(device)] if device else [])]
    name = UNKNOWN if isinstance(model, onnx.ModelProto) else str(model)
    given = model if isinstance(model, onnx.ModelProto) else open_model(model).proto
    if not is_rewritten(given):
        options = ["--interface", metadata.interface, "--precision", metadata.precision]
        options += ["--mask", mask] if mask is not None else []
        return shlex.join(["padfree", "compare", str(origin or name), *options, *look])
    if origin is None:
        command = shlex.join(["padfree", "compare", UNKNOWN, PACKED if name == UNKNOWN else name, *look])
        return f"{command} (where {UNKNOWN} is what it was made from)"
    making = shlex.join(["padfree", "optimize", str(origin), "-o", PACKED, "--precision", metadata.arithmetic])
    comparing = shlex.join(["padfree", "compare", str(origin), PACKED, *look])
    return f"{making}, with --calibrate as here, then {comparing}"
