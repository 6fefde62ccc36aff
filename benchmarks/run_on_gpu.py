# SPDX-License-Identifier: Apache-2.0
"""Everything that only a GPU can show, in one command: kernel tests, compute-sanitizer, engine tests, benchmarks.

    python benchmarks/run_on_gpu.py --results benchmarks/results/h200

Needs padfree installed with its plugin library, TensorRT, PyTorch, transformers, and libpadfree_kernels.so named by
PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON). PADFREE_PERTURBED_LIBRARY may name a second one, built
with -DPADFREE_PERTURB=ON as well. Exit code 1 if a step fails; the others still run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import append_record, environment

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu")
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", "--launch-timeout", "120")


@dataclass(frozen=True)
class Step:
    """One command, run in the repository's root."""

    name: str
    command: tuple[str, ...]


def steps(results: Path, timing_cache: str) -> list[Step]:
    """All steps, quick ones first."""
    perturbed = os.environ.get("PADFREE_PERTURBED_LIBRARY")
    delayed = ("env", f"PADFREE_KERNELS_LIBRARY={perturbed}", *PYTEST, "tests/kernels")
    return [
        Step("kernel tests", (*PYTEST, "tests/kernels")),
        *([Step("kernel tests with delays", delayed)] if perturbed else []),
        Step(
            "attention",
            (sys.executable, "benchmarks/attention.py", "--json", str(results / "attention.jsonl")),
        ),
        Step(
            "memory-bound kernels",
            (sys.executable, "benchmarks/rows.py", "--json", str(results / "rows.jsonl")),
        ),
        Step("plugin tests", (*PYTEST, "tests/plugins")),
        Step("engine tests", (*PYTEST, "tests/gpu")),
        Step(
            "end to end",
            (
                sys.executable,
                "benchmarks/sweep.py",
                "--sets",
                "targets",
                "--json",
                str(results / "end_to_end.jsonl"),
                "--timing-cache",
                timing_cache,
            ),
        ),
        Step("kernel tests under memcheck", (*SANITIZER, *PYTEST, "tests/kernels")),
    ]


def main() -> int:
    """Runs the steps that were asked for, shows their output as it comes, and closes with a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results" / "local", help="where JSON goes"
    )
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    parser.add_argument("--only", nargs="*", help="names of steps")
    arguments = parser.parse_args()
    records = []
    for step in steps(arguments.results, arguments.timing_cache):
        if arguments.only and step.name not in arguments.only:
            continue
        print(f"== {step.name}", flush=True)
        records.append(run(step))
        append_record(arguments.results / "checks.jsonl", {**records[-1], **environment()})
    for record in records:
        verdict = "passed" if record["status"] == 0 else f"FAILED ({record['status']})"
        print(f"{record['step']:30s} {verdict:14s} {record['seconds']:7.1f} s  {record['summary']}", flush=True)
    return 0 if all(record["status"] == 0 for record in records) else 1


def run(step: Step) -> dict[str, Any]:
    """Runs one step and shows its output as it comes; the record holds pytest's closing line, or the last one."""
    start = time.monotonic()
    process = subprocess.Popen(step.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    last = closing = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
        if re.match(r"=*\s*\d+ (passed|failed|skipped)", last):
            closing = last.strip("= ")
    status = process.wait()
    seconds = round(time.monotonic() - start, 1)
    return {"step": step.name, "status": status, "seconds": seconds, "summary": closing or last}


if __name__ == "__main__":
    sys.exit(main())
