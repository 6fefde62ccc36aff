# SPDX-License-Identifier: Apache-2.0
"""What layers take longer with attention between their QKV and output GEMMs, in one process.

    python -m benchmarks.attention.between_products --positions --cases 'window 64'

Attention by itself, again and again, begins while blocks of the call before still run, which a GEMM's blocks leave
no room for. Here it reads what a QKV GEMM has just written to the L2 cache, and the output GEMM reads its
result: 12 layers in a CUDA graph, with attention and without it, in turns; medians and quartiles of the difference a
layer. Answers are checked by benchmarks.attention. Needs libpadfree_kernels.so named by PADFREE_KERNELS_LIBRARY.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from dataclasses import replace

import torch
from padfree.builder.peers.timing import capture, mean_ms

from benchmarks.kernels.linear import CHAIN_LAYERS, Case, choose, make_problem, ours
from benchmarks.kernels_library import require_kernels_library
from tests.support.launchers import attention, make_tasks

from .cases import Case as AttentionCase
from .cases import all_cases
from .measurement import make_problem as make_attention_problem
from .position_cases import position_cases

ROUNDS = 41


def microseconds(case: AttentionCase) -> list[float]:
    """Quartiles of the time that attention adds to a layer."""
    problem = make_attention_problem(case, warm=True)
    width, tokens, positions = case.heads * case.head_size, case.tokens, problem.positions
    gemms = [Case(tokens, width, features, "none") for features in (3 * width, width)]
    qkv, out = (make_problem(gemm, torch.float16) for gemm in gemms)
    to_qkv, to_out = (choose(gemm, torch.float16) for gemm in gemms)
    make_qkv = ours(replace(qkv, y=problem.inputs[0].view(tokens, -1)), to_qkv)
    make_out = ours(out, to_out)
    tasks = make_tasks(problem.cu_seqlens, tokens, case.heads)

    def attend() -> None:
        attention(
            problem.operands(0), problem.cu_seqlens, out.x, scale=problem.scale, max_seq_len=case.longest,
            kernel=case.kernel, tasks=tasks, positions=positions, early_lengths=True,
        )  # fmt: skip

    def layers(*, attends: bool) -> None:
        for i in range(CHAIN_LAYERS):
            make_qkv(i)
            if attends:
                attend()
            make_out(i)

    having, lacking = capture(lambda: layers(attends=True)), capture(lambda: layers(attends=False))
    added = [(mean_ms(having, 4) - mean_ms(lacking, 4)) * 1e3 / CHAIN_LAYERS for _ in range(ROUNDS)]
    return statistics.quantiles(added, n=4)


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", action="store_true", help="cases with windows and biases")
    parser.add_argument("--cases", default="", help="only cases whose name this regular expression finds")
    arguments = parser.parse_args()
    require_kernels_library()
    for case in position_cases() if arguments.positions else all_cases():
        if re.search(arguments.cases, case.name):
            low, median, high = microseconds(case)
            print(f"{case.name:44s} {median:8.2f} us a layer ({low:.2f} to {high:.2f})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
