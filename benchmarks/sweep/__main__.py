# SPDX-License-Identifier: Apache-2.0
"""Sweeps on one GPU through `padfree bench`: over lengths, fill, tokens and models, one JSON line a case.

    python -m benchmarks.sweep --json benchmarks/results/h200/end_to_end.jsonl
    python -m benchmarks.sweep --sets fill length --json benchmarks/results/h200/end_to_end.jsonl --minutes 8

Cases that the file has from the same commit are skipped, so that a sweep may be stopped (--minutes stops it between two
cases) and continued. Models are exported once into --models, timing caches kept in --timing-cache; engines that serve
several cases stay in --engines until the end (10 GB for all sets). Most of the time goes into building padded engines;
two or three processes build them ahead, and then the sweep only measures:

    for part in 1 2 3; do
        python -m benchmarks.sweep --build-only --part $part/3 --engines /tmp/engines --timing-cache /tmp/cache.$part &
    done; wait
    python -m benchmarks.sweep --engines /tmp/engines --json benchmarks/results/h200/end_to_end.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

from padfree.builder.bench.environment import commit

from .cases import EVERYTHING, SETS
from .engines import Part
from .measurement import choose, done_cases, run


def main() -> int:
    """Measures; exit code 1 if a case failed or missed what is required of it, or time ran out."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS), help="default: all")
    parser.add_argument("--cases", default="", help="only cases whose name this regular expression finds")
    parser.add_argument(
        "--peers", nargs="*", choices=EVERYTHING, default=EVERYTHING, help="measure only these of a case's peers"
    )
    parser.add_argument("--json", type=Path, help="append one line per case to this file, and skip what it has")
    parser.add_argument("--models", type=Path, help="folder for exported models (default: a temporary one)")
    parser.add_argument("--engines", type=Path, help="folder for engines, of one commit only (default: temporary)")
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no case after these")
    parser.add_argument("--list", action="store_true", help="print the cases to be measured and stop")
    parser.add_argument("--build-only", action="store_true", help="build the padded engines, into --engines, and stop")
    parser.add_argument(
        "--part", type=Part.read, default=Part(), help="with --build-only: K/N for every N-th engine from the K-th on"
    )
    arguments = parser.parse_args()
    if arguments.build_only and arguments.engines is None:
        parser.error("--build-only needs --engines, the folder where the sweep then finds them")
    cases = choose(arguments.sets, done_cases(arguments.json), commit(), arguments.cases, arguments.peers)
    if arguments.list:
        for case in cases:
            print(f"{case.name}  [{', '.join(case.peers)}]")
        return 0
    with contextlib.ExitStack() as stack:
        folder = arguments.engines or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="padfree-sweep-")))
        folder.mkdir(parents=True, exist_ok=True)
        return run(cases, folder, arguments)


if __name__ == "__main__":
    sys.exit(main())
