# SPDX-License-Identifier: Apache-2.0
"""Memory-bound kernels beside a device copy of equal bytes, and what programmatic dependent launch saves between them.

    python -m benchmarks.kernels.rows --json benchmarks/results/h200/rows.jsonl

Three times of every kernel, all in CUDA graphs: over input sets that together are several times the L2 cache, beside a
copy of as many bytes and PyTorch's operators; and over one set that stays in the cache, back to back, with and without
programmatic dependent launch. Outputs are held against PyTorch's first. Needs libpadfree_kernels.so named by
PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from padfree.builder.peers.timing import capture

from benchmarks.command import json_parser, keep
from benchmarks.event_timing import time_ms
from benchmarks.kernels_library import require_kernels_library
from tests.support import launchers

from .row_cases import Case, Work, all_cases
from .row_report import reaches_copy, table

CACHE_MULTIPLE = 3
"""Together the input sets have this multiple of the L2 cache's size."""
MAX_SETS = 64
CHAIN = 50
"""Launches in a row in the graph of one input set."""
MAX_ERROR = 5e-3
"""Largest difference from PyTorch's fp16 result over its largest value; the kernel tests are stricter."""


@contextmanager
def plain_launches() -> Iterator[None]:
    """Kernels launched inside do not overlap: they come from a copy of the library, which reads the switch again."""
    name = "PADFREE_DEPENDENT_LAUNCH"
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as folder:
        copy = shutil.copy(launchers.LIBRARY, folder)
        with mock.patch.dict(os.environ, {name: "0"}), mock.patch.object(launchers, "LIBRARY", str(copy)):
            yield


def call_us(work: Callable[[], object], calls: int) -> float:
    """Time of one of the calls that `work` enqueues, in a CUDA graph."""
    return 1e3 * time_ms(capture(work)) / calls


def one_after_the_other(works: Sequence[Work]) -> Callable[[], None]:
    """A function that enqueues our kernel on each of these."""

    def enqueue() -> None:
        for work in works:
            work.run()

    return enqueue


def copy_us(num_bytes: int, sets: int) -> float:
    """Time of a device copy that reads and writes half of the bytes each, by cudaMemcpyAsync or a faster kernel."""
    half = max(1, num_bytes // 4)
    pairs = [torch.zeros(2, half, device="cuda", dtype=torch.float16) for _ in range(sets)]
    return min(
        call_us(lambda: [pair[1].copy_(pair[0]) for pair in pairs], sets),
        call_us(lambda: [torch.neg(pair[0], out=pair[1]) for pair in pairs], sets),
    )


def error_of(work: Work) -> float:
    """Largest difference from the peer over its largest value; infinite if the output is not finite."""
    work.output.fill_(float("nan") if work.output.is_floating_point() else -1)
    work.run()
    expected = work.peer().double()
    if not bool(work.output.isfinite().all()):
        return float("inf")
    return float((work.output.double() - expected).abs().max() / expected.abs().max())


def measure(case: Case) -> dict[str, Any]:
    """Measures one case."""
    first = case.make(0)
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    sets = min(MAX_SETS, max(2, -(-CACHE_MULTIPLE * cache_bytes // first.num_bytes)))
    works = [first, *(case.make(10 * seed) for seed in range(1, sets))]
    error = max(error_of(work) for work in works)
    chain_us = call_us(one_after_the_other([first] * CHAIN), CHAIN)
    with plain_launches():
        plain_us = call_us(one_after_the_other([first] * CHAIN), CHAIN)
    ours_us = call_us(one_after_the_other(works), sets)
    limit_us = copy_us(first.num_bytes, sets)
    record = {
        "case": case.name,
        "tokens": case.tokens,
        "width": case.width,
        "bytes": first.num_bytes,
        "max_error": error,
        "ours_us": round(ours_us, 2),
        "copy_us": round(limit_us, 2),
        "copy_share": round(limit_us / ours_us, 3),
        "peers_us": {"PyTorch": round(call_us(lambda: [work.peer() for work in works], sets), 2)},
        "chain_us": round(chain_us, 2),
        "chain_plain_us": round(plain_us, 2),
    }
    return {**record, "passed": error <= MAX_ERROR and reaches_copy(record)}


def main() -> int:
    """Measures; exit code 1 if a kernel is wrong or misses its share of a copy's bandwidth."""
    parser = json_parser(__doc__)
    parser.add_argument("--cases", default="", help="only cases whose name this regular expression finds")
    options = parser.parse_args()
    require_kernels_library()
    records = []
    for case in all_cases():
        if not re.search(options.cases, case.name):
            continue
        with torch.inference_mode():
            records.append(measure(case))
        torch.cuda.empty_cache()
        print(f"{records[-1]}", flush=True)
        keep(options.json, records[-1])
    print(table(records), end="", flush=True)
    return 0 if all(record["passed"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
