# SPDX-License-Identifier: Apache-2.0
"""What tasks of the Hopper attention kernel cost, each kind by itself: what PadfreeSchedule orders them by.

    python -m benchmarks.attention.task_costs --json benchmarks/results/h200/attention_tasks.jsonl

Every block gets two tasks of a kind, and then six; a task's cost is a quarter of the difference. A kind is a number of
heads and of groups of 64 query rows. Inputs lie in memory, not in the L2 cache. Needs a Hopper GPU, and
libpadfree_kernels.so named by PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON).
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from padfree.builder.bench.environment import append_record, environment
from padfree.builder.peers.timing import capture, mean_ms

from benchmarks.kernels_library import require_kernels_library
from tests.support.attention_tasks import KEYS, ROWS, Task, entries_of
from tests.support.launchers import attention

from .cases import Case
from .measurement import make_problem

HEADS = 12
HEAD_SIZES = (32, 64, 128)
LENGTHS = (64, 128, 192, 256, 320, 384, 512, 1024)
KINDS = {"3 groups": (1, 3), "2 groups": (1, 2), "1 head": (1, 1), "2 heads": (2, 1), "3 heads": (3, 1)}
"""Heads and groups of a task."""
FEW, MANY = 2, 6
"""Tasks of a block."""
ROUNDS = 5


def tasks_of(count: int, length: int, heads: int, groups: int) -> list[Task]:
    """So many tasks of one kind, of as many sequences of a length as they take."""
    parts = -(-length // ROWS) // groups
    in_order = (
        Task(sequence * length, length, part * groups * ROWS, head, heads, groups, 1)
        for sequence in itertools.count()
        for part in range(parts)
        for head in range(0, HEADS, heads)
    )
    return list(itertools.islice(in_order, count))


def time_us(tasks: list[Task], length: int, head_size: int) -> float:
    """Of one launch with this list."""
    sequences = tasks[-1].begin // length + 1
    problem = make_problem(Case("tasks of one kind", HEADS, head_size, (length,) * sequences, ()), warm=False)
    shape = (problem.case.tokens, HEADS * head_size)
    outputs = [torch.empty(shape, device="cuda", dtype=torch.float16) for _ in problem.inputs]
    entries = torch.tensor(entries_of(tasks), device="cuda", dtype=torch.int32)

    def run() -> None:
        for index, y in enumerate(outputs):
            attention(
                problem.operands(index),
                problem.cu_seqlens,
                y,
                scale=problem.scale,
                max_seq_len=max(length, KEYS + 1),  # or the kernel for short sequences would take it
                tasks=entries,
            )

    replay = capture(run)
    return min(mean_ms(replay, 3) for _ in range(ROUNDS)) * 1000 / len(outputs)


def main() -> None:
    """Prints a line for each length, and records it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append one line a length to this file")
    options = parser.parse_args()
    require_kernels_library()
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    for head_size, length in itertools.product(HEAD_SIZES, LENGTHS):
        costs = {}
        for kind, (heads, groups) in KINDS.items():
            if groups * ROWS >= length + ROWS:
                continue
            few, many = (time_us(tasks_of(blocks * n, length, heads, groups), length, head_size) for n in (FEW, MANY))
            costs[kind] = round((many - few) / (MANY - FEW), 3)
        print(f"D {head_size}, {length} tokens: " + ", ".join(f"{kind} {us:.2f} us" for kind, us in costs.items()))
        if options.json:
            record = {"case": f"tasks, D {head_size}, {length} tokens", "costs_us": costs, **environment()}
            append_record(options.json, record)


if __name__ == "__main__":
    main()
