# SPDX-License-Identifier: Apache-2.0
"""Whether a machine has an NVIDIA GPU at all, seen without the 2 GB of packages that could ask it."""

from __future__ import annotations

from pathlib import Path

DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Files of NVIDIA's driver, and of Windows' driver for Linux in WSL; containers see them if they were given a GPU."""


def no_gpu() -> str:
    """Why there is no GPU to be used; "" where one may be."""
    if any(file.exists() for file in DEVICE_FILES):
        return ""
    return f"this machine shows no NVIDIA GPU (there is neither {' nor '.join(map(str, DEVICE_FILES))})"
