# SPDX-License-Identifier: Apache-2.0
"""Measures cost tables, runs of unequal lengths, and a live Batcher against the simulation of the same arrivals."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from padfree.builder import build_engine
from padfree.builder.peers.padded_engine import build_padded_engine
from padfree.builder.simulate.replay import replay
from padfree.builder.simulate.report import SimulatedServer, Summary, summarise
from padfree.builder.simulate.trace import generate
from padfree.onnx_tools import rewrite, save_model, synthetic
from padfree.runtime import Session
from padfree.runtime.batching import Batcher, BatchingError, CostTable, Waiting

MAX_BATCH, MAX_SEQ_LEN = 32, 512
RATES = (1000.0, 4000.0, 8000.0)  # requests a second
QUEUE = 4096
VOCABULARY = 30_000


@contextmanager
def engines(folder: Path, timing_cache: str | None) -> Iterator[dict[str, Session]]:
    """BERT-base on the GPU in three forms."""
    model = one_vector(synthetic.bert_model())
    limits: dict[str, Any] = {"max_batch": MAX_BATCH, "max_seq_len": MAX_SEQ_LEN, "timing_cache": timing_cache}
    build_engine(model, folder / "packed.plan", precision="fp16", verify=False, **limits)
    build_padded_engine(model, folder / "padded.plan", **limits)
    with (
        Session(folder / "packed.plan") as packed,
        Session(folder / "packed.plan", cuda_graphs=False) as no_graphs,
        Session(folder / "padded.plan") as padded,
    ):
        yield {"packed": packed, "packed-no-graphs": no_graphs, "padded": padded}


@contextmanager
def small_models(folder: Path) -> Iterator[dict[str, Session]]:
    """One layer in onnxruntime, with both interfaces."""
    model = one_vector(synthetic.bert_model(1, 32, 2, 64, VOCABULARY, max_positions=64))
    for interface in ("packed", "padded"):
        rewritten = rewrite(model, interface=interface, precision="fp32", verify=False).model
        save_model(rewritten, folder / f"{interface}.onnx")
    with Session(folder / "packed.onnx") as packed, Session(folder / "padded.onnx") as padded:
        yield {"packed": packed, "padded": padded}


def one_vector(model: Any) -> Any:
    """The model without its output of one row per token, as servers of embeddings and scores use it."""
    for output in [output for output in model.graph.output if output.name == "last_hidden_state"]:
        model.graph.output.remove(output)
    return model


def sequences(lengths: Sequence[int], seed: int) -> list[np.ndarray]:
    """Sequences of random ids with these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCABULARY, length, dtype=np.int32) for length in lengths]


def arrivals(costs: CostTable, **changes: Any) -> list[Waiting]:
    """Requests of lengths up to the longest that was measured."""
    return generate(max_length=costs.lengths[-1], **changes)


def mix(session: Session, costs: CostTable, repeats: int) -> Iterator[dict[str, Any]]:
    """Ratio of measured and predicted time for runs of short-skewed lengths."""
    for batch in (4, 16, 32):
        ratios = []
        for seed in range(repeats):
            lengths = [request.length for request in arrivals(costs, rate=batch, seconds=1, seed=seed)]
            ids = sequences(lengths, seed)
            times_s = []
            for _ in range(6):
                start = time.perf_counter()
                session.run(ids)
                times_s.append(time.perf_counter() - start)
            ratios.append(float(np.median(times_s[3:])) / costs.run_seconds(lengths))
        low, middle, high = np.percentile(ratios, (5, 50, 95)).round(4).tolist()
        yield {"batch": batch, "runs": repeats, "measured_over_table": {"p5": low, "p50": middle, "p95": high}}


def live(session: Session, contender: SimulatedServer, trace: Sequence[Waiting]) -> dict[str, float]:
    """Plays the trace in real time through a Batcher; returns the figures of a simulation's summary."""
    ids = sequences([request.length for request in trace], 0)
    done_s: dict[int, float] = {}
    with Batcher(session, contender.policy, max_waiting=QUEUE) as batcher:
        everybody = threading.Semaphore(0)
        start_s = time.perf_counter()

        def finish(at: int, _: object) -> None:
            done_s[at] = time.perf_counter() - start_s
            everybody.release()

        for at, request in enumerate(trace):
            time.sleep(max(0.0, start_s + request.arrived_s - time.perf_counter()))
            try:
                batcher.submit(ids[at]).add_done_callback(partial(finish, at))
            except BatchingError:
                everybody.release()
        for _ in trace:
            everybody.acquire()
        stats = batcher.stats
    latency_ms = [1e3 * (end_s - trace[at].arrived_s) for at, end_s in done_s.items()]
    p50_ms, p99_ms = np.percentile(latency_ms, (50, 99)).tolist()
    return {
        "answered_rps": stats.answered / (max(done_s.values()) - trace[0].arrived_s),
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "run_requests": stats.answered / stats.runs,
        "refused": stats.refused / len(trace),
    }


def round_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers rounded to the digits that are meaningful."""
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}


def compare_live(session: Session, contender: SimulatedServer, seconds: float) -> Iterator[dict[str, Any]]:
    """A contender's lines, live and simulated."""
    live(session, contender, arrivals(contender.costs, rate=RATES[0], seconds=seconds / 2, seed=1))  # warms up
    for rate in RATES:
        trace = arrivals(contender.costs, rate=rate, seconds=seconds, seed=0)
        simulated: Summary = summarise(
            contender, trace, replay(trace, contender.policy, contender.costs, max_waiting=QUEUE)
        )
        shown = ("answered_rps", "p50_ms", "p99_ms", "run_requests", "refused")
        yield {
            "policy": contender.name,
            "offered_rps": round(simulated.offered_rps, 1),
            "live": round_values(live(session, contender, trace)),
            "simulated": round_values({name: simulated.record()[name] for name in shown}),
        }
