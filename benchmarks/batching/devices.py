# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a DevicePool on one GPU, two, and so on to all of the machine, beside a Session's.

    python -m benchmarks.batching.devices --lengths lengths.npy --json benchmarks/results/local/devices.jsonl

BERT-base in fp16, one vector per text, random ids of the lengths in a file (an array of whole numbers), or of a
log-normal distribution where there is none. Every figure is the best of `--rounds` after one that warms up, from ids on
the host to vectors on the host: all texts in one call of `run`, and in groups of 32 from 16 threads through a Batcher.
The share that a GPU was busy counts from the start of its first run to the end of its last one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.builder import build_engine
from padfree.onnx_tools import synthetic
from padfree.runtime import Session
from padfree.runtime.batching import Batcher, FirstCome
from padfree.runtime.pool import DevicePool, machine_devices

from benchmarks.command import json_parser, keep

MAX_BATCH, MAX_SEQ_LEN, MAX_TOKENS = 128, 512, 16384
TEXTS, GROUP, CALLERS = 10_000, 32, 16
VOCABULARY = 30_000

Ids = list[npt.NDArray[np.int32]]


def read_lengths(path: Path | None) -> npt.NDArray[np.int64]:
    """The lengths of a file, or TEXTS of a log-normal distribution with the median 150."""
    if path is None:
        return np.clip(np.random.default_rng(0).lognormal(np.log(150), 0.5, TEXTS), 8, MAX_SEQ_LEN).astype(np.int64)
    return np.asarray(np.load(path), dtype=np.int64)


def one_vector(model: Any) -> Any:
    """The model without its output of one row per token, as servers of embeddings and scores use it."""
    for output in [output for output in model.graph.output if output.name == "last_hidden_state"]:
        model.graph.output.remove(output)
    return model


def best_s(work: Callable[[], Any], rounds: int) -> float:
    """The shortest time over the rounds, after one that is not counted."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def through_batcher(pool: DevicePool, texts: Ids) -> None:
    """Sends groups from many threads, each of which waits for its answer."""
    groups = [texts[at : at + GROUP] for at in range(0, len(texts), GROUP)]
    with (
        Batcher(pool, FirstCome(pool.budget), runs=pool.runs) as batcher,
        ThreadPoolExecutor(CALLERS * pool.runs) as callers,
    ):
        list(callers.map(lambda group: batcher.submit_group(group).result(), groups))


def measure(plan: Path, devices: Sequence[int], texts: Ids, rounds: int) -> dict[str, Any]:
    """Measures one number of GPUs."""
    tokens = sum(ids.size for ids in texts)
    case = "1 GPU" if len(devices) == 1 else f"{len(devices)} GPUs"
    record: dict[str, Any] = {"case": case, "texts": len(texts), "tokens": tokens}
    with DevicePool.open(plan, devices, cuda_graphs=False) as pool:
        record["run_tokens_per_s"] = round(tokens / best_s(lambda: pool.run(texts), rounds))
        before, start = pool.stats, time.perf_counter()
        pool.run(texts)
        took_s = time.perf_counter() - start
        record["busy_share"] = {
            name: round((one.busy_s - before[name].busy_s) / took_s, 3) for name, one in pool.stats.items()
        }
        record["tokens_share"] = {
            name: round((one.tokens - before[name].tokens) / tokens, 4) for name, one in pool.stats.items()
        }
        record["batcher_tokens_per_s"] = round(tokens / best_s(lambda: through_batcher(pool, texts), rounds))
    return record


def main() -> None:
    """Builds, measures, prints and records."""
    parser = json_parser(__doc__)
    parser.add_argument("--lengths", type=Path, metavar="FILE", help="tokens of real texts, .npy")
    parser.add_argument("--plan", type=Path, help="a packed plan with one vector per text, instead of building one")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="timed rounds (default 3)")
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    texts = [rng.integers(1, VOCABULARY, length, dtype=np.int32) for length in read_lengths(arguments.lengths)]
    everything = machine_devices()
    records = []
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as folder:
        plan = arguments.plan or Path(folder) / "model.plan"
        if arguments.plan is None:
            limits: dict[str, Any] = {"max_batch": MAX_BATCH, "max_seq_len": MAX_SEQ_LEN, "max_tokens": MAX_TOKENS}
            build_engine(one_vector(synthetic.bert_model()), plan, precision="fp16", verify=False, **limits)
        tokens = sum(ids.size for ids in texts)
        with Session(plan, cuda_graphs=False) as session:
            rate = round(tokens / best_s(lambda: session.run(texts), arguments.rounds))
        records.append({"case": "Session", "texts": len(texts), "tokens": tokens, "run_tokens_per_s": rate})
        print(records[-1], flush=True)
        for count in range(1, len(everything) + 1):
            records.append(measure(plan, everything[:count], texts, arguments.rounds))
            print(records[-1], flush=True)
    for record in records:
        keep(arguments.json, record)


if __name__ == "__main__":
    main()
