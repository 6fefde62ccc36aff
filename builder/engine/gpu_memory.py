# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU has room for a model's weights, checked before TensorRT tries for minutes."""

from __future__ import annotations

from pathlib import Path

import onnx
from padfree.onnx_tools.files import bytes_of
from padfree.runtime.gpu import Device

from ..errors import BuildError
from .large_files import size_of_model

_GIB = 1 << 30


def weight_bytes(model: onnx.ModelProto, content: memoryview | None, file: Path | None) -> int:
    """The bytes of a model's weights; `content`, or `file`, holds all of its bytes where `model` is without them."""
    if file is not None:
        return size_of_model(file)
    if content is not None:
        return content.nbytes  # the graph's own part is small beside weights for which this matters
    return sum(bytes_of(tensor) or 0 for tensor in model.graph.initializer)


def check_room(weights: int, free: int, device: Device) -> None:
    """Refuses weights that do not fit.

    Args:
        weights: bytes of the weights.
        free: bytes of the GPU's free memory.
        device: the GPU.

    Raises:
        BuildError: they do not fit; the message has both sizes.
    """
    if weights <= free:
        return
    raise BuildError(
        f"the weights take {weights / _GIB:.1f} GiB, and GPU {device.index} ({device.name}) has {free / _GIB:.1f} GiB "
        "free; activations come on top; end other programs on the GPU (nvidia-smi shows them), choose a narrower "
        "precision (fp16, bf16, or fp8 where the GPU has it), or build on a GPU with more memory, such as --device 1"
    )
