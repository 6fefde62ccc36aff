# SPDX-License-Identifier: Apache-2.0
"""Memory of a server: its processes together, and the GPU."""

from __future__ import annotations

from pathlib import Path

from padfree.builder.bench.environment import run

PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """The process and all below it."""
    parents = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                status = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has ended
            parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def host_mib(pid: int) -> float:
    """Memory of the process and all below it in MiB; what they share counts once ("proportional set size").

    Raises:
        ProcessLookupError: it has ended.
    """
    if not (PROC / str(pid)).exists():
        raise ProcessLookupError(f"process {pid} has ended; look into the server's log")
    return sum(_pss_kib(member) for member in family(pid)) / 1024


def _pss_kib(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0  # it has ended meanwhile
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def gpu_mib() -> float | None:
    """Memory in use on the first GPU in MiB; None without one."""
    used = run("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0")
    return float(used) if used else None
