# SPDX-License-Identifier: Apache-2.0
"""What callers wait for whose arrays lie on the GPU, beyond the GPU's time.

    python -m benchmarks.engine.device_inputs --json benchmarks/results/local/device_inputs.jsonl

BERT-base, fp16, PyTorch's tensors in `run_packed`, runs in CUDA graphs. `gpu_us` is the GPU's time for the batch in a
CUDA graph that is launched alone. Every other entry has the median and the 99th percentile of what calls took, minus
that. Threads call one after the other each, all at once and with tensors of their own: then a call waits for the runs
of the others too, and what it took is divided by the number of threads.

`same`: tensors that stay where they are; `changing`: other tensors in every call. Results go to the host, to the GPU
(`to_device`), or to the GPU in the order of a stream of the caller's, who waits for the stream (`on_stream`). `numpy`
is the same call with arrays of the host.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import padfree.runtime
from padfree.builder.bench.environment import append_record, environment
from padfree.runtime import Session
from padfree.runtime.request import read_request

from benchmarks.command import json_parser

from .base import build_base
from .session import MAX_BATCH, MAX_SEQ_LEN, draw_sequences

CASES = "1x32,1x128,3x128,16x128"
THREADS = (1, 4)
WARM_UP, CALLS = 300, 2000  # per thread; sizes get graphs at the second run, addresses at the 64th run of a context
CHANGING = 1024  # sets of tensors: more than a context remembers
PERCENTILES = (50, 99)

Work = Callable[[], Any]


def gpu_us(session: Session, rows: list[np.ndarray]) -> float:
    """Median of the GPU's time for a launch that finds it idle."""
    backend: Any = session.backend
    with backend.prepare(session.feeds(read_request(rows, session.metadata))) as prepared:
        graph = prepared.capture()
        times = [prepared.time_ms(1, graph=graph)[0] for _ in range(200)]
    return 1e3 * float(np.median(times[100:]))


def waits_us(workers: list[Work]) -> list[float]:
    """What the calls of all threads took, one thread per worker, without the first calls."""
    start = threading.Barrier(len(workers), timeout=120)  # if one thread fails, the others do not wait forever
    times: list[list[int]] = [[] for _ in workers]

    def calls(work: Work, taken: list[int]) -> None:
        for number in (WARM_UP, CALLS):
            taken.clear()
            start.wait()
            for _ in range(number):
                began = time.perf_counter_ns()
                work()
                taken.append(time.perf_counter_ns() - began)

    threads = [threading.Thread(target=calls, args=pair) for pair in zip(workers, times, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [nanoseconds / 1e3 for taken in times for nanoseconds in taken]


def tensors(rows: list[np.ndarray]) -> tuple[dict[str, Any], Any]:
    """A batch on the GPU: inputs and lengths."""
    import torch

    ids = torch.from_numpy(np.concatenate(rows)).cuda()
    lens = torch.tensor([row.size for row in rows], dtype=torch.int32, device="cuda")
    return {"input_ids": ids, "token_type_ids": torch.zeros_like(ids)}, lens


def changing(session: Session, sets: list[tuple[dict[str, Any], Any]]) -> Work:
    """A call with different tensors each time."""
    turns = cycle(sets)
    return lambda: session.run_packed(*next(turns))


def on_stream(session: Session, inputs: dict[str, Any], lens: Any) -> Work:
    """A call in the order of a stream, which then waits for that stream."""
    import torch

    stream = torch.cuda.Stream()

    def work() -> None:
        with torch.cuda.stream(stream):
            kept = session.run_packed(inputs, lens, outputs="device", stream=stream)
        stream.synchronize()
        del kept

    return work


def workers(session: Session, rows: list[np.ndarray], threads: int) -> dict[str, list[Work]]:
    """The calls of each thread by name, each thread with its own arrays."""
    own = [tensors(rows) for _ in range(threads)]
    others = [tensors(rows) for _ in range(CHANGING)]
    packed, lens = np.concatenate(rows), np.array([row.size for row in rows], dtype=np.int32)
    host = {"input_ids": packed, "token_type_ids": np.zeros_like(packed)}
    return {
        "same": [partial(session.run_packed, *pair) for pair in own],
        "same_to_device": [partial(session.run_packed, *pair, outputs="device") for pair in own],
        "same_on_stream": [on_stream(session, *pair) for pair in own],
        "changing": [changing(session, others[at::threads]) for at in range(threads)],
        "numpy": [partial(session.run_packed, host, lens)] * threads,
    }


def measure(plan: Path, batch: int, seq_len: int) -> dict[str, Any]:
    """Measures one case, in sessions of its own."""
    import torch

    rows = draw_sequences(batch, seq_len)
    record: dict[str, Any] = {"case": f"{batch} x {seq_len}", "tokens": sum(row.size for row in rows)}
    with Session(plan) as session:
        gpu = gpu_us(session, rows)
        record["gpu_us"] = round(gpu, 1)
        for threads in THREADS:
            for name, work in workers(session, rows, threads).items():
                torch.cuda.synchronize()
                result = np.percentile(waits_us(work), PERCENTILES) / threads - gpu
                record[f"{name}_{threads}_threads_us"] = np.round(result, 1).tolist()
    return record


def main() -> None:
    """Builds, measures, prints and records."""
    parser = json_parser(__doc__)
    parser.add_argument("--folder", type=Path, help="keeps the plan, or has the one of an earlier run")
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    parser.add_argument("--cases", default=CASES, help="sequences x longest")
    parser.add_argument("--label", default="", help="is added to the case, for another version of the runtime")
    arguments = parser.parse_args()
    print(f"padfree.runtime is {padfree.runtime.__file__}; microseconds, {PERCENTILES} %, beyond the GPU's time")
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        plan = folder / "model.plan"
        if not plan.exists():
            plan = build_base(folder, max_batch=MAX_BATCH, max_seq_len=MAX_SEQ_LEN, timing_cache=arguments.timing_cache)
        for case in arguments.cases.split(","):
            record = measure(plan, *(int(size) for size in case.split("x")))
            record["case"] += arguments.label
            for key, value in record.items():
                print(f"{key:28} {value}", flush=True)
            if arguments.json:
                append_record(arguments.json, {**record, **environment()})


if __name__ == "__main__":
    main()
