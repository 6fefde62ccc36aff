# SPDX-License-Identifier: Apache-2.0
"""PadfreeAttention on a GPU beside the fastest attention to be had: checked first, then timed, in one process.

    python -m benchmarks.attention --json benchmarks/results/h200/attention.jsonl

Every implementation runs in a CUDA graph over input sets that together are several times the L2 cache, so that each
call finds its inputs in memory (--warm: one set, found in the cache). All graphs of a case are replayed in turns, round
after round. A peer that is not installed, cannot do a case or is wrong on it is recorded with the reason. A peer that
breaks the CUDA context is left out, and the benchmark starts again at that case. Needs libpadfree_kernels.so named by
PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from benchmarks.command import json_parser, keep
from benchmarks.kernels_library import require_kernels_library
from tests.support.launchers import ATTENTION_KERNELS

from .cases import FA2, Case, all_cases
from .grid_cases import grid_cases
from .measurement import BrokenContextError, run_case
from .peers import PEERS
from .position_cases import position_cases
from .position_peers import PEERS as POSITION_PEERS
from .problem import Prepare
from .report import table


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = json_parser(__doc__, prog="python -m benchmarks.attention")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--positions", action="store_true", help="cases with windows and biases, and their peers")
    kinds.add_argument("--grid", action="store_true", help="head sizes, batches and lengths, beside FlashAttention-2")
    parser.add_argument("--cases", default="", help="only cases whose name this regular expression finds")
    parser.add_argument("--peers", default="", help="only peers whose name this regular expression finds")
    parser.add_argument("--kernel", choices=ATTENTION_KERNELS, help="our kernel, instead of what the case names")
    parser.add_argument("--exclude", action="append", default=[], metavar="PEER=REASON", help="leave out a peer")
    parser.add_argument("--from-case", type=int, default=0, metavar="N", help="begin with the N-th of these cases")
    parser.add_argument("--warm", action="store_true", help="one input set, which stays in the L2 cache")
    parser.add_argument("--list", action="store_true", help="name the cases and peers, and end")
    return parser.parse_args(arguments)


def cases_and_peers(options: argparse.Namespace) -> tuple[tuple[Case, ...], Mapping[str, Prepare]]:
    """All cases of the kind that the options name, and the peers by name."""
    if options.grid:
        return grid_cases(), {FA2: POSITION_PEERS[FA2]}
    return (position_cases(), POSITION_PEERS) if options.positions else (all_cases(), PEERS)


def main() -> int:
    """Runs the cases; exit code 1 if our result is wrong in one, or misses a target other than a stretch goal."""
    options = parse(sys.argv[1:])
    every, every_peer = cases_and_peers(options)
    cases = [case for case in every if re.search(options.cases, case.name)]
    if options.kernel:
        cases = [replace(case, kernel=options.kernel) for case in cases]
    peers = {name: make for name, make in every_peer.items() if re.search(options.peers, name)}
    left_out = dict(entry.partition("=")[::2] for entry in options.exclude)
    if options.list:
        print("\n".join(["cases:", *(f"  {case.name}" for case in cases), "peers:", *(f"  {name}" for name in peers)]))
        return 0
    require_kernels_library()
    records = []
    for number, case in enumerate(cases[options.from_case :], options.from_case):
        try:
            with torch.inference_mode():
                record = run_case(case, peers, left_out, warm=options.warm, say=lambda line: print(line, flush=True))
        except BrokenContextError as error:
            name, _, reason = str(error).partition(": ")
            print(f"  {error}: it broke the CUDA context; starting again without it", flush=True)
            again = [
                *sys.argv[1:],
                "--from-case",
                str(number),
                "--exclude",
                f"{name}=broke the CUDA context ({reason})",
            ]
            os.execv(sys.executable, [sys.executable, "-m", "benchmarks.attention", *again])
        torch.cuda.empty_cache()
        keep(options.json, {"cudnn": torch.backends.cudnn.version(), **record})
        records.append(record)
    print(table(records), flush=True)
    return 0 if all(record["passed"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
