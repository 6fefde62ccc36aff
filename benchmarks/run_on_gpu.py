# SPDX-License-Identifier: Apache-2.0
"""Everything that only a GPU can show, in one command: kernel tests, compute-sanitizer, engine tests, benchmarks.

    python benchmarks/run_on_gpu.py --results benchmarks/results/h200

Needs padfree installed with its plugin library, TensorRT, PyTorch, transformers, and libpadfree_kernels.so named by
PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON). Exit code 1 if a step fails; the others still run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

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
    return [
        Step("kernel tests", (*PYTEST, "tests/kernels")),
        Step("kernel tests under memcheck", (*SANITIZER, *PYTEST, "-m", "gpu and not slow", "tests/kernels")),
        Step(
            "attention",
            (sys.executable, "benchmarks/attention.py", "--json", str(results / "attention.jsonl")),
        ),
        Step("engine tests", (*PYTEST, "tests/gpu")),
        Step(
            "end to end",
            (
                sys.executable,
                "benchmarks/end_to_end.py",
                "--json",
                str(results / "end_to_end.jsonl"),
                "--timing-cache",
                timing_cache,
            ),
        ),
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
    summary = []
    for step in steps(arguments.results, arguments.timing_cache):
        if arguments.only and step.name not in arguments.only:
            continue
        print(f"== {step.name}", flush=True)
        start = time.monotonic()
        status = subprocess.run(step.command, cwd=ROOT, check=False).returncode
        summary.append((step.name, status, time.monotonic() - start))
    for name, status, seconds in summary:
        print(f"{name:30s} {'passed' if status == 0 else f'FAILED ({status})':14s} {seconds:7.1f} s", flush=True)
    return 0 if all(status == 0 for _, status, _ in summary) else 1


if __name__ == "__main__":
    sys.exit(main())
