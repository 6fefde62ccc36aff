# SPDX-License-Identifier: Apache-2.0
"""Files that declare device code as libpadfree.so does, without holding any."""

from __future__ import annotations

from pathlib import Path

from padfree.runtime.gpu.device_code import MARK


def write_library(path: Path, architectures: str) -> Path:
    """Writes a library that declares code for these architectures, such as "80,90a"."""
    path.write_bytes(b"\x7fELF...\0" + MARK + architectures.encode() + b"\0...")
    return path.resolve()
