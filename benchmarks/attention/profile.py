# SPDX-License-Identifier: Apache-2.0
"""Why the attention kernels take the time they take: Nsight Compute's counters, one launch a case.

    python -m benchmarks.attention.profile --json benchmarks/results/h200/attention_profile.jsonl

Profiles the cases whose goal benchmarks.attention missed by its record, or those that --cases finds; caches are
emptied before the launch, clocks left alone. Needs ncu, the right to read counters, and libpadfree_kernels.so named
by PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON).
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from padfree.builder.bench.environment import append_record, environment

from benchmarks.command import json_parser
from benchmarks.kernels_library import require_kernels_library
from benchmarks.records import read

from .cases import Case, all_cases

RESULTS = Path(__file__).resolve().parents[1] / "results" / "h200" / "attention.jsonl"
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
FLOP_PER_CLOCK, EXP_PER_CLOCK = 4096, 16
"""For one multiprocessor (compute capability 9.0): dense fp16 products, and exponentials."""
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


def records(cases: Sequence[Case], result: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One record per case: the least time that its work can take, and what was counted.

    Raises:
        ValueError: there is not exactly one launch per case.
    """
    if len(result) != len(cases):
        raise ValueError(f"{len(cases)} cases, but ncu saw {len(result)} attention kernels")
    items = []
    for case, profile in zip(cases, result, strict=True):
        scores = case.heads * sum(n * n for n in case.lengths)
        least = {
            "bytes_moved": case.bytes_moved,
            "least_tensor_clocks": round(case.flops / FLOP_PER_CLOCK / profile["multiprocessors"]),
            "least_exp_clocks": round(scores / EXP_PER_CLOCK / profile["multiprocessors"]),
        }
        items.append({"case": case.name, "tokens": case.tokens, **least, **profile})
    return items


def choose(pattern: str | None) -> list[Case]:
    """Cases that the pattern matches; without one, those that missed their goal in a record of benchmarks.attention.

    Raises:
        SystemExit: there is none.
    """
    missed = {r["case"] for r in read(RESULTS) if r["targets"] and r["targets"][0]["met"] is False}
    cases = [c for c in all_cases() if (c.name in missed if pattern is None else re.search(pattern, c.name))]
    if not cases:
        raise SystemExit(f"{RESULTS}: no goal is missed" if pattern is None else f"--cases {pattern!r} finds no case")
    return cases


def launch(names: Sequence[str]) -> None:
    """Launches each case once between the profiler's start and stop; ncu runs this."""
    import torch

    from .measurement import make_problem
    from .peers import ours

    for case in all_cases():
        if case.name in names:
            attention = ours(make_problem(case, warm=True))
            attention.run(0)  # loads modules and makes the list of tasks
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            attention.run(0)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


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


def main() -> int:
    """Profiles the cases and writes their records."""
    parser = json_parser(__doc__)
    parser.add_argument("--cases", help="cases whose name this regular expression finds, met or missed")
    parser.add_argument("--ncu", default="ncu", help="Nsight Compute's program")
    parser.add_argument("--launch", nargs="+", metavar="CASE", help=argparse.SUPPRESS)  # ncu calls this
    options = parser.parse_args()
    if options.launch:
        launch(options.launch)
        return 0
    ncu = find_ncu(options.ncu)
    cases = choose(options.cases)
    made_with = environment()
    report = profile(ncu, "attention", "benchmarks.attention.profile", [case.name for case in cases])
    for record in records(cases, profiles(report)):
        print(record, flush=True)
        if options.json:
            append_record(options.json, {**record, **made_with})
    return 0


if __name__ == "__main__":
    sys.exit(main())
