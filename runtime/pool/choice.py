# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a user means: "all", or numbers by commas."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import SessionError

ALL = "all"


def read_devices(text: str) -> tuple[int, ...] | None:
    """What `--gpus` says: numbers of GPUs, or None for all that there are.

    Raises:
        SessionError: neither "all" nor different numbers by commas.
    """
    if text == ALL:
        return None
    words = text.split(",")
    numbers = tuple(int(word) for word in words if word.isascii() and word.isdecimal())
    if len(set(numbers)) < len(words):
        raise SessionError(f"GPUs are {text!r}, allowed: {ALL}, or different numbers by commas; pass --gpus 0,1")
    return numbers


def machine_devices() -> tuple[int, ...]:
    """The numbers of all GPUs that CUDA shows to this process.

    Raises:
        SessionError: there is none, or no cuda-bindings.
    """
    from ..gpu.cuda import device_count

    count = device_count()
    if not count:
        raise SessionError(
            "no GPU that CUDA can use on this machine; check the driver with nvidia-smi and what CUDA_VISIBLE_DEVICES "
            "leaves, or run the rewritten .onnx file on the CPU"
        )
    return tuple(range(count))


def check_devices(devices: Sequence[int]) -> None:
    """Raises SessionError unless there is one or more, and each once."""
    if not devices or len(set(devices)) < len(devices):
        raise SessionError(f"devices are {list(devices)}, allowed: one or more different numbers; pass [0, 1]")
