# SPDX-License-Identifier: Apache-2.0
"""Nsight Compute's counters of single launches, for benchmarks that explain a kernel's time."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels_library import require_kernels_library

METRICS: Mapping[str, str] = {
    "time_us": "gpu__time_duration.sum",
    "sm_clocks": "sm__cycles_elapsed.avg",
    "sm_clocks_busy": "sm__cycles_active.avg",
    "sm_clocks_busiest": "sm__cycles_active.max",
    "sm_clocks_least_busy": "sm__cycles_active.min",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "xu_pct": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "fma_pct": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "issue_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps": "sm__warps_active.avg.per_cycle_active",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "blocks": "launch__grid_size",
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block",
    "waves": "launch__waves_per_multiprocessor",
    "multiprocessors": "launch__sm_count",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "dram_pct": "dram__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "l2_read_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l2_write_bytes": "l1tex__m_l1tex2xbar_write_bytes.sum",
    "l2_pct": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "shared_pct": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
}
"""Field of a record -> metric; use (pct) is of the time that a multiprocessor has work, but for memory of all time."""
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
STALL_SECTION = "WarpStateStats"
"""Why warps did not issue (selected: they did), and ncu's section with all of these reasons."""
UNITS = {"us": 1.0, "ns": 1e-3, "ms": 1e3, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
"""ncu's units, which it chooses by a value's size, in microseconds or bytes; other units are left as they are."""
HOW_TO_PERMIT = """the driver does not let this user read GPU counters (ERR_NVGPUCTRPERM): run as root, in a container
with --cap-add SYS_ADMIN, or load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0"""


def value_of(text: str, unit: str) -> float:
    """A value as printed by ncu, in microseconds, bytes or its own unit; Kbyte/block and the like become bytes."""
    return float(text.replace(",", "")) * UNITS.get(unit.partition("/")[0], 1.0)


def profiles(text: str) -> list[dict[str, Any]]:
    """The output of `ncu --page raw --csv` as one flat dictionary per launch, with `stalls`: a share for each reason.

    Raises:
        ValueError: there is no launch, or a metric is missing, which the message names.
    """
    start = text.find('"ID"')
    rows = list(csv.reader(text[start:].splitlines())) if start >= 0 else []
    if len(rows) < 3:
        raise ValueError(f"ncu's report holds no launch: {text[-300:]!r}")
    head, units = rows[0], dict(zip(rows[0], rows[1], strict=True))
    stalls = {metric: match[1] for metric in head if (match := STALL.fullmatch(metric))}
    missing = [metric for metric in METRICS.values() if metric not in units] + ([] if stalls else [STALL_SECTION])
    if missing:
        raise ValueError(f"ncu's report lacks {', '.join(missing)}: profile on Hopper with Nsight Compute 2025")
    results = []
    for row in rows[2:]:
        cells = dict(zip(head, row, strict=True))
        result = {name: round(value_of(cells[metric], units[metric]), 3) for name, metric in METRICS.items()}
        waits = {reason: value_of(cells[metric], "") for metric, reason in stalls.items()}
        shares = {reason: round(wait / sum(waits.values()), 4) for reason, wait in waits.items()}
        name = re.search(r"\w+Kernel", cells["Kernel Name"])
        results.append({"kernel": name[0] if name else cells["Kernel Name"], **result, "stalls": shares})
    return results


def run(command: Sequence[str]) -> str:
    """A command's output.

    Raises:
        SystemExit: it failed; the message is the end of its output, or says how to permit counters.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if "ERR_NVGPUCTRPERM" in done.stdout:
        raise SystemExit(HOW_TO_PERMIT)
    if done.returncode != 0:
        raise SystemExit(f"{Path(command[0]).name} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def profile(ncu: str, kernels: str, module: str, arguments: Sequence[str]) -> str:
    """Ncu's report of the kernels whose names match a pattern and which `module --launch` launches, as CSV."""
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/kernels.ncu-rep"
        collect = ["--profile-from-start", "off", "--clock-control", "none", "--cache-control", "all"]
        collect += ["--kernel-name", f"regex:{kernels}", "--metrics", ",".join(METRICS.values())]
        collect += ["--section", STALL_SECTION, "--export", report]
        run([ncu, *collect, sys.executable, "-m", module, "--launch", *arguments])
        return run([ncu, "--import", report, "--page", "raw", "--csv"])


def find_ncu(name: str = "ncu") -> str:
    """Nsight Compute's program; SystemExit where it or the library of kernels is missing."""
    ncu = shutil.which(name)
    if not ncu:
        raise SystemExit(f"{name} not found: install Nsight Compute, or name it with --ncu (.../bin/ncu)")
    require_kernels_library()
    return ncu
