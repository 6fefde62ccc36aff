# SPDX-License-Identifier: Apache-2.0
"""Memory of a server: of all its processes together, and on the GPU."""

from __future__ import annotations

import os
from pathlib import Path

from padfree.builder.bench.environment import run

PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    parents = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                status = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # the process has ended
            parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def host_mib(pid: int) -> float:
    """Resident memory of the process and its descendants in MiB; shared memory counts for each of them.

    Raises:
        ProcessLookupError: the process has ended.
    """
    if not (PROC / str(pid)).exists():
        raise ProcessLookupError(f"process {pid} has ended; look into the server's log")
    return sum(_resident_pages(member) for member in family(pid)) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _resident_pages(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        return 0  # the process has ended meanwhile


def gpu_mib() -> float | None:
    """Memory in use on the first GPU in MiB; None without a GPU."""
    used = run("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0")
    return float(used) if used else None
