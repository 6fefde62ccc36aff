# SPDX-License-Identifier: Apache-2.0
"""Host time of Session: what a call costs outside of the GPU, and where it goes.

    python -m benchmarks.engine.session --json benchmarks/results/local/session.jsonl

BERT-base, fp16. For every case, medians, each with more in it than the one before: the GPU's time for the batch in a
CUDA graph, launches queued (`gpu`); the same for a launch that finds the GPU idle (`gpu_alone`); wall time of the
inputs' copy, the launch, and the results' copy to the host (`round_trip`); wall time of Session's calls with NumPy
arrays of int32, results on the host or on the GPU, and with PyTorch's tensors on the GPU (`..._gpu`). `second_run` is
one call, which captures a graph. `host_...` is what a call takes when nothing waits for the GPU (results on the GPU, on
the caller's stream); `..._4_threads` is wall time over the runs that four threads finish in it. `steps_us` takes a run
from lists apart.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from padfree.runtime import Session
from padfree.runtime.feeds import split_outputs
from padfree.runtime.gpu.cuda import Stream
from padfree.runtime.request import read_request

from benchmarks.command import json_parser, keep

from .base import build_base

CASES = ((1, 32), (1, 128), (16, 128), (16, 512))
MAX_BATCH, MAX_SEQ_LEN = 16, 512
CALLS = 200
THREADS = 4
QUEUE = 16  # calls whose work may be queued on the GPU while the host's time is measured


def draw_sequences(batch: int, seq_len: int) -> list[np.ndarray]:
    """Sequences of lengths uniform in [0.2 S, S]; a single sequence has length S."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(round(0.2 * seq_len), seq_len + 1, batch) if batch > 1 else [seq_len]
    return [rng.integers(1, 30000, length, dtype=np.int32) for length in lengths]


def call_us(work: Callable[[], Any], *, between: Callable[[], None] | None = None) -> float:
    """Median time of a call, whose results are dropped."""
    times = []
    for at in range(CALLS):
        if between is not None and at % QUEUE == 0:
            between()
        start = time.perf_counter_ns()
        work()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def threads_us(work: Callable[[], Any]) -> float:
    """Time on the clock per run while several threads run."""
    start = threading.Barrier(THREADS + 1)

    def calls() -> None:
        start.wait()
        for _ in range(CALLS):
            work()

    threads = [threading.Thread(target=calls) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter_ns()
    for thread in threads:
        thread.join()
    return (time.perf_counter_ns() - began) / 1e3 / (CALLS * THREADS)


def steps_us(session: Session, request: Any) -> dict[str, float]:
    """Median times of the steps of `Session.run`, in order; `wait` begins while the GPU works."""
    metadata, backend = session.metadata, session.backend
    times: dict[str, list[float]] = {}
    for _ in range(CALLS):
        marks = [("", time.perf_counter_ns())]
        ragged = read_request(request, metadata)
        marks.append(("read and check", time.perf_counter_ns()))
        feeds = session.feeds(ragged)
        marks.append(("inputs", time.perf_counter_ns()))
        started = backend.start(feeds)
        marks.append(("copy, launch, results' arrays", time.perf_counter_ns()))
        assert started is not None  # by default, start waits for a free context
        split_outputs(started.outputs, ragged, metadata)
        marks.append(("rows", time.perf_counter_ns()))
        started.wait()
        marks.append(("wait", time.perf_counter_ns()))
        for (_, before), (name, after) in pairwise(marks):
            times.setdefault(name, []).append((after - before) / 1e3)
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


def calls_on_gpu(session: Session, rows: list[np.ndarray]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls of run_packed with PyTorch's tensors; none without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    ids = torch.from_numpy(np.concatenate(rows)).cuda()
    lens = torch.tensor([row.size for row in rows], dtype=torch.int32, device="cuda")
    inputs = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids)}
    yield "run_packed_gpu", lambda: session.run_packed(inputs, lens)
    yield "run_packed_gpu_to_device", lambda: session.run_packed(inputs, lens, outputs="device")


def measure(session: Session, batch: int, seq_len: int) -> dict[str, Any]:
    """Measures one case."""
    rows = draw_sequences(batch, seq_len)
    request = {"input_ids": rows, "token_type_ids": [np.zeros_like(row) for row in rows]}
    lists = {"input_ids": [row.tolist() for row in rows]}
    packed, lens = np.concatenate(rows), np.array([row.size for row in rows], dtype=np.int32)
    backend: Any = session.backend
    session.run(request)
    start = time.perf_counter_ns()
    session.run(request)
    second_run_us = (time.perf_counter_ns() - start) / 1e3
    feeds = session.feeds(read_request(request, session.metadata))
    with backend.prepare(feeds) as prepared:
        graph = prepared.capture()

        def round_trip() -> None:
            prepared.replace_values(feeds)
            graph.launch()
            prepared.download()

        prepared.time_ms(10, graph=graph)
        gpu = {
            "gpu_us": round(1e3 * statistics.median(prepared.time_ms(100, graph=graph)), 1),
            "gpu_alone_us": round(1e3 * statistics.median(prepared.time_ms(1, graph=graph)[0] for _ in range(100)), 1),
            "round_trip_us": round(call_us(round_trip), 1),
            "second_run_us": round(second_run_us, 1),
        }
    stream = Stream()
    calls: dict[str, Callable[[], Any]] = {
        "run": lambda: session.run(request),
        "run_lists": lambda: session.run(lists),
        "run_packed": lambda: session.run_packed(packed, lens),
        "run_to_device": lambda: session.run(request, outputs="device"),
        **dict(calls_on_gpu(session, rows)),
    }
    enqueue: dict[str, Callable[[], Any]] = {
        "host_run": lambda: session.run(request, outputs="device", stream=stream.handle),
        "host_run_packed": lambda: session.run_packed(packed, lens, outputs="device", stream=stream.handle),
    }
    record: dict[str, Any] = {"case": f"{batch} x {seq_len}", "tokens": int(packed.size), **gpu}
    for name, work in calls.items():
        call_us(work)
        record[f"{name}_us"] = round(call_us(work), 1)
        if name in ("run_lists", "run_packed_gpu"):
            record[f"{name}_4_threads_us"] = round(threads_us(work), 1)
    record["steps_us"] = steps_us(session, lists)
    for name, work in enqueue.items():
        call_us(work, between=stream.synchronize)
        record[f"{name}_us"] = round(call_us(work, between=stream.synchronize), 1)
    stream.synchronize()
    return record


def main() -> None:
    """Builds, measures, prints and records."""
    parser = json_parser(__doc__)
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    parser.add_argument("--plan", type=Path, help="a packed BERT's plan for 16 x 512, instead of building one")
    parser.add_argument("--cases", help="such as 1x32,16x128: sequences x longest")
    parser.add_argument("--graphs-only", action="store_true", help="no plain runs")
    arguments = parser.parse_args()
    cases = [case.split("x") for case in arguments.cases.split(",")] if arguments.cases else CASES
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as name:
        plan = arguments.plan or build_base(
            Path(name), max_batch=MAX_BATCH, max_seq_len=MAX_SEQ_LEN, timing_cache=arguments.timing_cache
        )
        for graphs in (True,) if arguments.graphs_only else (True, False):
            with Session(plan, cuda_graphs=graphs) as session:
                for batch, seq_len in cases:
                    record = measure(session, int(batch), int(seq_len))
                    record["case"] += ", graphs" if graphs else ", plain"
                    print(record, flush=True)
                    keep(arguments.json, record)


if __name__ == "__main__":
    main()
