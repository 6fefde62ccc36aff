# SPDX-License-Identifier: Apache-2.0
"""What padfree knows and wants of a GPU; needs no CUDA to import."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SessionError

MIN_COMPUTE_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Device:
    """One GPU as CUDA sees it."""

    index: int
    name: str
    major: int
    minor: int

    @property
    def compute_capability(self) -> str:
        """Such as "9.0"."""
        return f"{self.major}.{self.minor}"


def check_compute_capability(device: Device) -> None:
    """Raises SessionError for a GPU that padfree's kernels are not built for."""
    if (device.major, device.minor) < MIN_COMPUTE_CAPABILITY:
        raise SessionError(
            f"GPU {device.index} ({device.name}) has compute capability {device.compute_capability}, padfree needs "
            "8.0 (Ampere) or newer; use a newer GPU, or run the rewritten .onnx file on the CPU"
        )
