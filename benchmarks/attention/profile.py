# SPDX-License-Identifier: Apache-2.0
"""Why the attention kernels take the time they take: Nsight Compute's counters, one launch a case.

    python -m benchmarks.attention.profile --json benchmarks/results/h200/attention_profile.jsonl

Profiles the cases whose goal benchmarks.attention missed by its record, or those that --cases finds; caches are
emptied before the launch, clocks left alone. Needs ncu, the right to read counters, and libpadfree_kernels.so named
by PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import json_parser, keep
from benchmarks.kernels.nsight_compute import find_ncu, profile, profiles
from benchmarks.records import read

from .cases import Case, all_cases

RESULTS = Path(__file__).resolve().parents[1] / "results" / "h200" / "attention.jsonl"
FLOP_PER_CLOCK, EXP_PER_CLOCK = 4096, 16
"""Operations of one multiprocessor (compute capability 9.0): dense fp16 products, and exponentials."""


def records(cases: Sequence[Case], result: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One record per case: the least time that its work can take, and what was counted.

    Raises:
        ValueError: there is not exactly one launch per case.
    """
    if len(result) != len(cases):
        raise ValueError(f"{len(cases)} cases, but ncu saw {len(result)} attention kernels")
    items = []
    for case, counters in zip(cases, result, strict=True):
        scores = case.heads * sum(n * n for n in case.lengths)
        least = {
            "bytes_moved": case.bytes_moved,
            "least_tensor_clocks": round(case.flops / FLOP_PER_CLOCK / counters["multiprocessors"]),
            "least_exp_clocks": round(scores / EXP_PER_CLOCK / counters["multiprocessors"]),
        }
        items.append({"case": case.name, "tokens": case.tokens, **least, **counters})
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
    report = profile(ncu, "attention", "benchmarks.attention.profile", [case.name for case in cases])
    for record in records(cases, profiles(report)):
        print(record, flush=True)
        keep(options.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
