# SPDX-License-Identifier: Apache-2.0
"""Documents that share a query, with the query's tokens computed once and with all tokens of every pair.

    python -m benchmarks.engine.shared_prefixes --json shared_prefixes.jsonl

The plan has Qwen3-Reranker-0.6B's layers (benchmarks.definitions, random weights), and gives out the last token's row.
GPU times are of one batch held ready, in a CUDA graph; wall times are of `Session.run`, from lists to NumPy arrays.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from padfree.builder import cli
from padfree.runtime import Session
from padfree.runtime.prefixes import shared_runs
from padfree.runtime.request import RaggedBatch, read_request

from benchmarks.command import keep

from ..definitions import CONFIGS, write_folder

MODEL = "qwen3-0.6b"
RUNS = 30


def pairs(documents: int, tokens: int, common: int) -> list[list[int]]:
    """Random ids: so many sequences of `tokens` after the same `common` ones."""
    rng = np.random.default_rng(0)
    size = CONFIGS[MODEL]["vocab_size"]
    query = rng.integers(1, size, common).tolist()
    return [query + rng.integers(1, size, tokens).tolist() for _ in range(documents)]


def build(folder: Path, options: argparse.Namespace) -> Path:
    """Builds the plan."""
    model, plan = folder / "model", folder / "model.plan"
    model.mkdir()
    write_folder(CONFIGS[MODEL], model)
    longest = options.tokens + options.common
    sizes = {
        "--max-batch": options.documents + 28,
        "--max-seq-len": longest,
        "--max-tokens": options.documents * longest,
    }
    words = ["build", str(model), "-o", str(plan), "--pooling", "lasttoken", "--precision", options.precision]
    words += ["--no-verify", "--shared-prefixes", "--timing-cache", options.timing_cache]
    if cli.main([*words, *(str(word) for item in sizes.items() for word in item)]):
        raise SystemExit("the plan could not be built")
    return plan


class Never:
    """Costs with which sharing does not pay."""

    def mixed_seconds(self, sequences: Any, tokens: Any, squares: Any) -> Any:  # noqa: ARG002
        """More sequences cost more, whatever their tokens are."""
        return np.asarray(sequences)


def device_ms(session: Session, batch: RaggedBatch) -> float:
    """The median GPU time of a batch."""
    with session.backend.prepare(session.feeds(batch)) as prepared:  # type: ignore[attr-defined]
        graph = prepared.capture()
        prepared.time_ms(RUNS, graph=graph)
        return float(statistics.median(prepared.time_ms(RUNS, graph=graph)))


def wall_ms(session: Session, rows: Sequence[Sequence[int]]) -> float:
    """The median time of Session.run."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(list(rows))
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[RUNS // 3 :])


def measure(plan: Path, rows: list[list[int]]) -> dict[str, Any]:
    """Times with and without sharing, and how far the rows are apart."""
    result: dict[str, Any] = {"sequences": len(rows), "tokens": sum(map(len, rows))}
    with Session(plan) as session:
        whole = read_request(rows, session.metadata)
        (run,) = shared_runs(whole, session.metadata, session.budget)
        result |= {"shared_tokens": int(run.batch.seq_lens.sum())}
        result |= {"gpu_ms": device_ms(session, whole), "shared_gpu_ms": device_ms(session, run.batch)}
        (name,) = (item.name for item in session.metadata.outputs)
        shared = np.stack(session.run(rows)[name])
        result |= {"shared_run_ms": wall_ms(session, rows)}
        session.share_by(Never())
        alone = np.stack(session.run(rows)[name])
        result |= {"run_ms": wall_ms(session, rows)}
    cosines = (shared * alone).sum(1) / np.linalg.norm(shared, axis=1) / np.linalg.norm(alone, axis=1)
    result |= {"gpu_speedup": result["gpu_ms"] / result["shared_gpu_ms"]}
    result |= {"run_speedup": result["run_ms"] / result["shared_run_ms"], "lowest_cosine": float(cosines.min())}
    return {key: round(value, 6 if "cosine" in key else 3) for key, value in result.items()}


def main() -> None:
    """Builds both plans, measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=150, help="of a document")
    parser.add_argument("--common", type=int, default=200, help="tokens that all begin with")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    parser.add_argument("--json", type=Path, help="append the line to this file")
    options = parser.parse_args()
    rows = pairs(options.documents, options.tokens, options.common)
    with tempfile.TemporaryDirectory(prefix="padfree-prefixes-") as name:
        record = {
            "case": f"{MODEL}, {options.precision}, {options.documents} x {options.tokens}, shared {options.common}",
            **measure(build(Path(name), options), rows),
        }
    print(record, flush=True)
    keep(options.json, record)


if __name__ == "__main__":
    main()
