# SPDX-License-Identifier: Apache-2.0
"""How long batching policies take to choose a run out of a queue: the host's time, no GPU.

    python -m benchmarks.batching.planning

The cost table is made up: what it says does not matter to the time, only its size.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from padfree.runtime.batching import Budget, CheapestCut, CostTable, FirstCome, Policy, Waiting

LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
BATCHES = (1, 2, 4, 8, 16, 32)
QUEUES = (10, 100, 1000, 4000)


def table(interface: str) -> CostTable:
    """A cost table of the usual size."""
    cost_ms = tuple(tuple(0.5 + length * batch / 2500 for batch in BATCHES) for length in LENGTHS)
    return CostTable(interface, LENGTHS, BATCHES, cost_ms)


def median_ms(policy: Policy, waiting: list[Waiting], repeats: int) -> float:
    """Median time of a decision in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        policy.decide(waiting, 1.0)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    """Prints a line for each policy, with a column for each length of the queue."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    policies: dict[str, Policy] = {
        "packed, first come": FirstCome(Budget(max_tokens=16384, max_sequences=32)),
        "packed, cheapest cut": CheapestCut(table("packed"), Budget(max_tokens=16384, max_sequences=32)),
        "padded, cheapest cut": CheapestCut(table("padded"), Budget(None, 32, counts_padding=True)),
        "padded, cheapest cut, whole queue": CheapestCut(
            table("padded"), Budget(None, 32, counts_padding=True), window=max(QUEUES)
        ),
    }
    print(f"{'ms for a decision; requests waiting:':40}" + "".join(f"{count:>9}" for count in QUEUES))
    for name, policy in policies.items():
        cells = []
        for count in QUEUES:
            lengths = np.random.default_rng(0).integers(4, 512, count).tolist()
            cells.append(median_ms(policy, [Waiting(length, 0.0) for length in lengths], arguments.repeats))
        print(f"{name:40}" + "".join(f"{cell:9.2f}" for cell in cells))


if __name__ == "__main__":
    main()
