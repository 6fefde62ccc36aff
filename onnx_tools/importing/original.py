# SPDX-License-Identifier: Apache-2.0
"""The first steps from a file to a graph: they make the model that the rewritten one is compared with.

It has operators that onnxruntime runs, no rounding to integers, and one float type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx import ModelProto

from ..files.model import Model
from ..precision.widen import widen
from .axes import with_rows_marked
from .canonical import runnable
from .nvidia import holds_plugins, without_plugins
from .quantized.removal import UnquantizedModel, holds_quantization, without_quantization


@dataclass(frozen=True)
class Original:
    """A file's model after some of the steps.

    `half` is the model before its floats were widened, whose types the results have. `unquantized` tells what rounding
    was taken out, None where there was none.
    """

    model: Model
    half: ModelProto
    unquantized: UnquantizedModel | None = None


def replace_plugins(original: Original) -> Original:
    """Replaces NVIDIA's plugins for variable-length engines by standard operators."""
    if not holds_plugins(original.model.proto):
        return original
    model = without_plugins(original.model)
    return Original(model, model.proto)


def remove_quantization(original: Original) -> Original:
    """Removes the rounding of activations and weights to integers or e4m3."""
    if not holds_quantization(original.model.proto):
        return original
    unquantized = without_quantization(original.model)
    return Original(unquantized.model, unquantized.model.proto, unquantized)


def widen_floats(original: Original) -> Original:
    """Widens floats to float32: passes and verification know no other float type."""
    return replace(original, model=widen(original.model))


def make_runnable(original: Original) -> Original:
    """Brings what onnxruntime refuses, although ONNX allows it, into a form that it takes."""
    return replace(original, model=original.model.with_proto(runnable(original.model.proto)))


def mark_rows(original: Original) -> Original:
    """Marks inputs [B,N] that are rows of sequences, not tokens."""
    return replace(original, model=with_rows_marked(original.model))
