# SPDX-License-Identifier: Apache-2.0
"""What a Batcher costs the host for a request, by how many wait: with a model that takes no time, without a GPU.

    python -m benchmarks.batching.request_cost

Texts of 30 tokens. Whoever gets an answer asks again at once, so that as many requests wait from the beginning to the
end. The figure is the processor's time over requests, which neighbours on the machine do not change: reading and
checking one, queueing it, choosing runs, joining their tokens, handing out rows, and the thread that asks again.
`--json` appends a line for every case, with the wall time beside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
from padfree.builder.bench.environment import append_record, environment
from padfree.contract.metadata import Metadata, parse_metadata
from padfree.runtime.batching import Batcher, Budget, CheapestCut, FairShare, FirstCome, Policy
from padfree.runtime.request import RaggedBatch

from benchmarks.command import json_parser

from .planning import table

QUEUES = (1, 100, 20_000)
REQUESTS = 40_000
LENGTH, WIDTH = 30, 384
BUDGET = Budget(max_tokens=16384, max_sequences=64)
POLICIES: Mapping[str, Policy] = {
    "first come": FirstCome(BUDGET),
    "first come, patience": FirstCome(BUDGET, patience_s=1.0),
    "fair share": FairShare(BUDGET),
    "cheapest cut": CheapestCut(table("packed"), Budget(max_tokens=16384, max_sequences=32)),
}


def metadata_of_encoder() -> Metadata:
    """The metadata of an encoder with one vector per text."""
    inputs = [
        {"name": "input_ids", "role": "tokens", "limit": 30522, "dtype": "int32"},
        {"name": "token_type_ids", "role": "tokens", "limit": 2, "dtype": "int32"},
        {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"},
    ]
    output = {"name": "vector", "layout": "per_sequence", "dtype": "float32", "dims": ["B", WIDTH]}
    raw = {"format": 1, "interface": "packed", "precision": "fp32", "inputs": inputs, "outputs": [output]}
    return parse_metadata({**raw, "max_positions": 512, "plugins": {}}, "the model that takes no time")


class Instant:
    """Takes a Session's place in a Batcher, with answers that are ready at once."""

    def __init__(self) -> None:
        self.metadata = metadata_of_encoder()
        self._vectors = np.zeros((512, WIDTH), dtype=np.float32)

    def run(self, request: Mapping[str, Any]) -> dict[str, list[Any]]:
        """A vector for every sequence."""
        return {"vector": list(self._vectors[: len(next(iter(request.values())))])}

    def run_ragged(self, ragged: RaggedBatch) -> dict[str, list[Any]]:
        """A vector for every sequence."""
        return {"vector": list(self._vectors[: ragged.seq_lens.size])}


def us_a_request(policy: Policy, waiting: int, requests: int) -> tuple[float, float]:
    """Microseconds per request, of the processor and on the clock, with `waiting` requests waiting all the time."""
    ids = np.random.default_rng(0).integers(1, 30000, LENGTH).tolist()
    left = iter(range(requests))
    finished = threading.Semaphore(0)
    with Batcher(Instant(), policy, runs=1, max_waiting=waiting + 1) as batcher:

        def ask(_answered: Future[Any] | None = None) -> None:
            if next(left, None) is None:
                finished.release()
            else:
                batcher.submit(ids).add_done_callback(ask)

        start, start_cpu = time.perf_counter(), time.process_time()
        for _ in range(waiting):
            ask()
        for _ in range(waiting):
            finished.acquire()
        times = time.process_time() - start_cpu, time.perf_counter() - start
        return 1e6 * times[0] / requests, 1e6 * times[1] / requests


def main() -> None:
    """Prints a line for each policy, with a column for each length of the queue."""
    parser = json_parser(__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of every case")
    parser.add_argument("--policy", choices=POLICIES, help="this one alone")
    parser.add_argument("--label", default="", help="is added to the case, for another version of the runtime")
    arguments = parser.parse_args()
    print(f"{'us for a request; requests waiting:':40}" + "".join(f"{count:>9}" for count in QUEUES))
    for name, policy in POLICIES.items():
        if arguments.policy not in (None, name):
            continue
        print(f"{name:40}", end="", flush=True)
        for count in QUEUES:
            cpu_us, wall_us = us_a_request(policy, count, max(arguments.requests, 2 * count))
            print(f"{cpu_us:9.1f}", end="", flush=True)
            if arguments.json:
                case = f"{name}, {count} waiting{arguments.label}"
                record = {"case": case, "cpu_us": round(cpu_us, 2), "wall_us": round(wall_us, 2)}
                append_record(arguments.json, {**record, **environment()})
        print(flush=True)


if __name__ == "__main__":
    main()
