# SPDX-License-Identifier: Apache-2.0
"""Device memory of ragged streams: padfree's shared blocks, sized for the lengths that come, and TensorRT's default.

    python -m benchmarks.engine.memory --json benchmarks/results/local/memory.jsonl

BERT-base, fp16, a profile of 32 x 512. Two sessions with two contexts each, as two models in one server, are driven by
two threads; TensorRT's default gives each of the four contexts the memory of the whole profile. The figures: what
blocks hold (mean over the stream, peak), what the GPU has less of than before (contexts, graphs and blocks), and the
same for TensorRT's default, measured in the same process.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt
from padfree.runtime import Session
from padfree.runtime.gpu.cuda import free_bytes

from benchmarks.command import json_parser, keep

from .base import build_base

MAX_BATCH, MAX_SEQ_LEN = 32, 512
REQUESTS = 200
SESSIONS = CONTEXTS = 2
STREAMS: dict[str, tuple[int, int]] = {"short texts": (8, 64), "mixed": (32, 384), "whole profile": (512, 512)}
"""The shortest and longest length of a stream; batches hold 1 to MAX_BATCH sequences."""


def requests(lengths: tuple[int, int], seed: int = 0) -> list[list[np.ndarray]]:
    """Ragged batches of random ids."""
    rng = np.random.default_rng(seed)
    low, high = lengths
    return [
        [
            rng.integers(1, 30000, size, dtype=np.int32)
            for size in rng.integers(low, high + 1, rng.integers(1, MAX_BATCH + 1))
        ]
        for _ in range(REQUESTS)
    ]


def bytes_taken(before: int) -> int:
    """Device memory that was free before and no longer is."""
    gc.collect()
    return before - free_bytes()


def run_ours(plan: Path, lengths: tuple[int, int], *, cuda_graphs: bool) -> dict[str, float]:
    """Runs the stream through padfree's sessions."""
    sessions = [Session(plan, cuda_graphs=cuda_graphs, contexts=CONTEXTS) for _ in range(SESSIONS)]
    before = free_bytes()  # by now the engines hold their weights
    backend: Any = sessions[0].backend
    held: list[int] = []

    def work(session: Session, seed: int) -> None:
        for request in requests(lengths, seed):
            session.run(request)  # results go to the host: on the GPU, the caller's share would count
            held.append(backend.block_bytes)

    threads = [threading.Thread(target=work, args=(session, seed)) for seed, session in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = {
        "blocks_mean_mib": statistics.mean(held) / 2**20,
        "blocks_peak_mib": max(held) / 2**20,
        "taken_mib": bytes_taken(before) / 2**20,
    }
    for session in sessions:
        session.close()
    return result


def tensorrt_default(plan: Path) -> float:
    """MiB that TensorRT takes for as many contexts with its default strategy, before they run."""
    runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
    engines = [runtime.deserialize_cuda_engine(plan.read_bytes()) for _ in range(SESSIONS)]
    before = free_bytes()
    contexts = [engine.create_execution_context() for engine in engines for _ in range(CONTEXTS)]
    result = bytes_taken(before) / 2**20
    del contexts, engines
    return result


def main() -> None:
    """Builds, runs, prints and records."""
    parser = json_parser(__doc__, "one line per stream")
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as name:
        plan = build_base(Path(name), max_batch=MAX_BATCH, max_seq_len=MAX_SEQ_LEN, timing_cache=arguments.timing_cache)
        measure(plan, arguments.json, print)


def measure(plan: Path, json: Path | None, say: Callable[[str], None]) -> None:
    """Measures all streams, with and without graphs."""
    with Session(plan) as session:
        for lengths in STREAMS.values():
            session.run(requests(lengths)[0])  # CUDA loads kernels when they first run, which is due to no context
        backend: Any = session.backend
        default_mib = tensorrt_default(plan)
        static_mib = backend.static_bytes / 2**20
    for name, lengths in STREAMS.items():
        for graphs in (False, True):
            ours = run_ours(plan, lengths, cuda_graphs=graphs)
            record = {
                "case": f"{name}, {'graphs' if graphs else 'plain'}",
                "contexts": SESSIONS * CONTEXTS,
                **{key: round(value, 1) for key, value in ours.items()},
                "tensorrt_static_mib": round(SESSIONS * CONTEXTS * static_mib, 1),
                "tensorrt_taken_mib": round(default_mib, 1),
            }
            keep(json, record)
            ours_mib = " / ".join(f"{record[key]:.1f}" for key in ("blocks_mean_mib", "blocks_peak_mib", "taken_mib"))
            default = f"{record['tensorrt_static_mib']:.1f} / {record['tensorrt_taken_mib']:.1f}"
            say(f"{record['case']:24s} MiB: blocks mean / peak / taken {ours_mib}; TensorRT static / taken {default}")


if __name__ == "__main__":
    main()
