# SPDX-License-Identifier: Apache-2.0
"""Whether the plugin library has device code for a GPU; whatever uses it on one asks here, before the first launch."""

from __future__ import annotations

import functools
import json
import mmap
import os
from pathlib import Path

from padfree.contract.architectures import architecture_for, code_problem, install_command

from ..errors import SessionError
from . import plugin_library
from .device import Device

MARK = b"padfree architectures: "
"""Ahead of what was compiled, in the library's file (plugins/shell/device_code.cpp)."""
MOST_BYTES = 200  # of what follows the mark
PTX = "ptx"
"""Among what was compiled: the code is PTX of the kernels for the first architecture, which newer GPUs compile."""


def architectures(library: Path) -> tuple[str, ...] | None:
    """What a library was compiled for, such as ("80", "90a"); () without device code, None where nothing tells.

    The file itself tells, without being loaded; of libraries older than that the `build_info.json` beside them.
    """
    try:
        status = library.stat()
    except OSError:
        return None
    return _architectures(library, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _architectures(library: Path, _modified_ns: int, size: int) -> tuple[str, ...] | None:
    if size:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            offset = content.find(MARK)
            if offset >= 0:
                start = offset + len(MARK)
                text, end, _ = content[start : start + MOST_BYTES].partition(b"\0")
                if end:
                    return tuple(text.decode("ascii", "replace").split(",")) if text else ()
    try:
        built_for = json.loads(library.with_name(plugin_library.BUILD_INFO_NAME).read_text(encoding="utf-8"))
        return tuple(map(str, built_for["architectures"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def problem(gpu: str, compute_capability: str, library: Path) -> str:
    """Why a library is of no use on a GPU, with the command that builds one that is; "" where it is of use.

    Args:
        gpu: its name, such as "NVIDIA L4".
        compute_capability: such as "8.9".
        library: the file.
    """
    compiled = architectures(library)
    if compiled is None:
        return ""
    reason = code_problem(gpu, compute_capability, compiled)
    if not reason or architecture_for(compute_capability) is None:
        return reason
    path = os.environ.get(plugin_library.ENVIRONMENT_VARIABLE)
    unset = f", and unset {plugin_library.ENVIRONMENT_VARIABLE}" if path else ""
    command = install_command(compute_capability, compiled)
    return f"{reason} ({library}); in a checkout of padfree run: {command}{unset}; or install padfree's wheel"


def require(device: Device) -> None:
    """Refuses a plugin library without code for a GPU.

    Raises:
        SessionError: it has none, or there is no library; the message says what builds it.
    """
    require_for(device.name, device.compute_capability)


def require_for(gpu: str, compute_capability: str) -> None:
    """Like require, for a GPU by its name and compute capability, such as "8.9".

    Raises:
        SessionError: as require.
    """
    reason = problem(gpu, compute_capability, plugin_library.find())
    if reason:
        raise SessionError(reason)
