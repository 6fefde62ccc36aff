# SPDX-License-Identifier: Apache-2.0
"""How equal balanced batches are, and what that gains: imbalance on the CPU, steps per second on several GPUs.

    python -m benchmarks.training --lengths lengths.npy --json benchmarks/results/local/training.jsonl
    python -m benchmarks.training --steps --lengths lengths.npy --json benchmarks/results/local/training.jsonl

The first command needs no GPU: for 2 to 64 ranks and batches of 8 to 64 rows, the mean and the 99th percentile over all
steps of `--epochs` epochs of how much longer a step takes than one of equal work, for balanced batches and for batches
in the order of the shuffled rows. `--steps` trains BERT-base's shape in bfloat16 without padding (PyTorch's varlen
attention, AdamW, DistributedDataParallel) with one process per GPU, with both kinds of batches in turn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.command import json_parser, keep

from .batches import Lengths, imbalance

RANKS, BATCHES = (2, 4, 8, 16, 64), (8, 16, 32, 64)


def read_lengths(path: Path | None) -> Lengths:
    """The lengths of a file, or those of a log-normal distribution with the median 165."""
    if path is None:
        return np.clip(np.random.default_rng(0).lognormal(np.log(165), 0.45, 10_000), 41, 384).astype(np.int64)
    return np.asarray(np.load(path), dtype=np.int64)


def main() -> None:
    """Measures, prints and records."""
    parser = json_parser(__doc__)
    parser.add_argument("--lengths", type=Path, metavar="FILE", help="tokens of the rows of a dataset, .npy")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="epochs of the first command (default 5)")
    parser.add_argument("--steps", action="store_true", help="train on all GPUs, and count steps")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of training each way (default 5)")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[32, 64], metavar="B", help="rows of a GPU's batch (default 32 64)"
    )
    arguments = parser.parse_args()
    lengths = read_lengths(arguments.lengths)
    if arguments.steps:
        from .steps import measure  # needs PyTorch

        records = measure(lengths, batches=arguments.batch, seconds=arguments.seconds)
    else:
        sizes = [(ranks, batch) for ranks in RANKS for batch in BATCHES if ranks * batch <= lengths.size]
        records = (imbalance(lengths, ranks, batch, arguments.epochs) for ranks, batch in sizes)
    for record in records:
        print(record, flush=True)
        keep(arguments.json, record)


if __name__ == "__main__":
    main()
