# SPDX-License-Identifier: Apache-2.0
"""What the GEMM kernels for GPUs other than Hopper read from and write to the L2 cache, by Nsight Compute's counters.

    python -m benchmarks.kernels.linear_mma_bytes --json benchmarks/results/h200/linear_mma_bytes.jsonl

Each tile of each case is launched once. Counted is the least that tiles of this size can take: every block reads its
rows of both operands, and the results are written once. Needs ncu, the right to read counters, and
libpadfree_kernels.so named by PADFREE_KERNELS_LIBRARY.
"""

from __future__ import annotations

import sys

from ..command import json_parser, keep
from .nsight_compute import find_ncu, profile, profiles

CASES = ((128, 768, 2304), (128, 3072, 768), (1403, 768, 768), (1403, 3072, 768), (4802, 768, 3072), (4802, 3072, 768))
"""T, K, N."""
TILES = ((128, 256), (128, 128), (128, 128), (64, 128), (128, 64), (64, 64), (32, 64), (16, 64))
"""Tokens and features of each, as in plugins/linear/mma/menu.h."""


def counted_bytes(case: tuple[int, int, int], tile: int) -> tuple[int, int]:
    """The least bytes that a tile's blocks read and write, in fp16; rows that are not there are read from the last."""
    tokens, depth, features = case
    rows, columns = -(-tokens // TILES[tile][0]), -(-features // TILES[tile][1])
    return 2 * depth * (min(rows * TILES[tile][0], tokens) * columns + features * rows), 2 * tokens * features


def launch() -> None:
    """Launches every tile of every case between the profiler's start and stop; ncu runs this."""
    import torch

    from tests.support.launchers import MMA_TILES, linear

    for tokens, depth, features in CASES:
        x, weight, y = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in
                        ((tokens, depth), (depth, features), (tokens, features)))  # fmt: skip
        for tile in MMA_TILES:
            linear(x, weight, y, tiling=tile)
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            linear(x, weight, y, tiling=tile)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def main() -> int:
    """Runs itself under ncu, prints and records."""
    parser = json_parser(__doc__, "one line per case and tile")
    parser.add_argument("--launch", action="store_true", help="launch the kernels and stop: what ncu runs")
    arguments = parser.parse_args()
    if arguments.launch:
        launch()
        return 0
    report = profile(find_ncu(), "linearMma", __spec__.name, [])
    for number, result in enumerate(profiles(report)):
        case, tile = CASES[number // len(TILES)], number % len(TILES)
        read, written = counted_bytes(case, tile)
        record = {
            "case": "{} x {} x {}, tile {}".format(*case, tile),
            "read_ratio": round(result["l2_read_bytes"] / read, 3),
            "write_ratio": round(result["l2_write_bytes"] / written, 3),
            **{name: result[name] for name in ("time_us", "registers", "shared_bytes", "warps", "l2_hit_pct")},
        }
        print(record, flush=True)
        keep(arguments.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
