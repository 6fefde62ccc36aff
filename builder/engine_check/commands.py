# SPDX-License-Identifier: Apache-2.0
"""The command that finds where an engine with wrong answers goes wrong, for the files that exist."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import onnx
from padfree.contract.metadata import Metadata
from padfree.onnx_tools.files import is_rewritten, open_model

from ..engine.options import BuildOptions
from ..folders.folder_model import FolderModel

PACKED = "packed.onnx"
UNKNOWN = "model.onnx"


def compare_command(
    model: str | Path | onnx.ModelProto | FolderModel,
    origin: Sequence[str] | None,
    metadata: Metadata,
    options: BuildOptions,
) -> str:
    """`padfree compare` for the model that an engine was built from; it builds engines that give inner tensors, too.

    Args:
        model: what the engine was built from.
        origin: what that was made from, as words of a command, with their options; None: users know `model`.
        metadata: the rewritten model's.
        options: how the engine was built.
    """
    look = ["--runners", "trt", "--bisect", *(["--device", str(options.device)] if options.device else [])]
    name = UNKNOWN if isinstance(model, onnx.ModelProto) else str(model)
    if isinstance(model, FolderModel):
        name, is_made = str(model.folder), False
    else:
        is_made = is_rewritten(model if isinstance(model, onnx.ModelProto) else open_model(model).proto)
    original, kind = list(origin or [name]), ["--interface", metadata.interface, "--precision", metadata.arithmetic]
    if is_made and origin is None:
        command = shlex.join(["padfree", "compare", UNKNOWN, PACKED if name == UNKNOWN else name, *look])
        return f"{command} (where {UNKNOWN} is what it was made from)"
    mask = ["--mask", options.mask_input] if origin is None and options.mask_input is not None else []
    others = [("--masks", options.mask_form), ("--padding-id", options.padding_id)]
    more = [word for option, value in others if value is not None for word in (option, str(value))]
    more += ["--shared-prefixes"] if options.shared_prefixes else []
    if not is_made and not more:
        return shlex.join(["padfree", "compare", *original, *kind, *mask, *look])
    making = shlex.join(["padfree", "optimize", *original, "-o", PACKED, *kind, *mask, *more])
    calibrated = ", with --calibrate as here," if metadata.quantization is not None else ""
    first, *head = original
    comparing = shlex.join(["padfree", "compare", first, PACKED, *head, *look])
    return f"{making}{calibrated} and then {comparing}"
