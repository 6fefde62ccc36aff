# SPDX-License-Identifier: Apache-2.0
"""Random batches on a GPU: what a sequence gives depends on nothing that is in the batch with it.

    python -m tests.gpu.random_batches --count 100000 --results benchmarks/results/h200/batches.jsonl

Sequences of all lengths, the empty ones included, are drawn from a pool in any number and order, with and without
filler after them, for engines of several families. The truth is the original in onnxruntime on every sequence alone.
Exit code 1 at a wrong answer, which is printed with the batch's seed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from padfree.builder import build_engine
from padfree.builder.bench.environment import append_record, environment
from padfree.runtime import Session

from tests.support import exports
from tests.support.messages import widen

from .engine_cases import Entry
from .engine_check import error_of

ENTRIES = (
    Entry("families", "bert_torchscript_sdpa", "packed", "fp32"),
    Entry("families", "bert_torchscript_sdpa", "packed", "fp16"),
    Entry("families", "bert_mean_l2_torchscript", "packed", "fp16"),
    Entry("families", "roberta_torchscript_sdpa", "packed", "fp16"),
    Entry("families", "modernbert_torchscript_sdpa", "packed", "fp16"),
    Entry("families", "t5_torchscript_sdpa", "packed", "fp32"),
    Entry("families", "bert_token_classification_torchscript", "padded", "fp32"),
    Entry("families", "mpnet_torchscript_eager", "padded", "fp32"),
)
POOL, LONGEST, MAX_BATCH, MAX_TOKENS, MOST_FILLER = 200, 32, 16, 256, 40
ROOT = Path(__file__).resolve().parents[2]


class Pool:
    """Sequences and the original's answers for each of them alone."""

    def __init__(self, entry: Entry, folder: Path, outputs: list[str]) -> None:
        model, inputs = entry.load(folder)
        lengths = tuple(int(length) for length in np.random.default_rng(0).integers(1, LONGEST + 1, POOL))
        self.sequences = exports.sequences(inputs, lengths)
        self.wanted = exports.truth(widen(model), self.sequences, outputs)
        self.empty = {item.name: np.zeros(0, np.int64) for item in inputs}


def batches(seed: int) -> Iterator[tuple[int, list[int], int]]:
    """Endless batches: a seed, the batch's sequences (-1 for an empty one), and how many tokens of filler follow."""
    while True:
        rng = np.random.default_rng(seed)
        chosen = rng.integers(-1 if rng.random() < 0.3 else 0, POOL, rng.integers(1, rng.choice([2, 5, 40])))
        yield seed, chosen.tolist(), int(rng.integers(0, MOST_FILLER)) if rng.random() < 0.5 else 0
        seed += 1


def answers(session: Session, pool: Pool, chosen: list[int], filler: int) -> dict[str, list[np.ndarray]]:
    """Every output's value for each sequence."""
    rows = [pool.sequences[at] if at >= 0 else pool.empty for at in chosen]
    names = [item.name for item in session.metadata.inputs if item.role == "tokens"]
    lengths = [row[names[0]].size for row in rows]
    fits = 0 < sum(lengths) <= MAX_TOKENS - filler and len(rows) <= MAX_BATCH
    if not filler or not fits or session.metadata.interface == "padded":
        return session.run({name: [row[name] for row in rows] for name in names})
    tokens = {name: np.concatenate([*(row[name] for row in rows), np.zeros(filler, np.int64)]) for name in names}
    found = session.run_packed(tokens, np.asarray(lengths), filler_tokens=filler)
    ends = np.cumsum(lengths)
    split = {item.name: item.layout == "packed" for item in session.metadata.outputs}
    return {
        name: [value[end - size : end] for end, size in zip(ends, lengths, strict=True)] if split[name] else list(value)
        for name, value in found.items()
    }


def search(entry: Entry, folder: Path, first: int, count: int) -> None:
    """Runs the batches of `count` seeds from `first` on. Raises AssertionError at a wrong answer."""
    model, _ = entry.load(folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, plan = Path(scratch) / "model.onnx", Path(scratch) / "model.plan"
        onnx.save_model(model, str(source))
        options = {"interface": entry.interface, "precision": entry.precision, "verify": False}
        tokens = {} if entry.interface == "padded" else {"max_tokens": MAX_TOKENS}
        cache = folder / "timing-families.cache"
        build_engine(source, plan, **options, **tokens, max_batch=MAX_BATCH, max_seq_len=LONGEST, timing_cache=cache)
        with Session(plan) as session:
            outputs = [item.name for item in session.metadata.outputs]
            pool = Pool(entry, folder, outputs)
            for seed, chosen, filler in batches(first):
                if seed == first + count:
                    return
                found = answers(session, pool, chosen, filler)
                for output_index, name in enumerate(outputs):
                    pairs = [
                        (np.asarray(value)[None], pool.wanted[at][output_index])
                        for at, value in zip(chosen, found[name], strict=True)
                        if at >= 0
                    ]
                    if pairs:
                        what = f"{entry.key}, seed {seed}, sequences {chosen}, {filler} filler tokens: {name}"
                        error_of(what, pairs, entry.precision)


def main() -> int:
    """Searches with one process per engine, on all GPUs; records the count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=8000, help="batches of all engines together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="JSON lines that get a record")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/padfree-engines"))
    parser.add_argument("--engine", type=int, help="search with this one alone, in this process")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.engine is not None:
        search(ENTRIES[arguments.engine], arguments.folder, arguments.seed, arguments.count)
        return 0
    from padfree.runtime.gpu.cuda import device_count

    start, share = time.monotonic(), -(-arguments.count // len(ENTRIES))
    processes = []
    for number in range(len(ENTRIES)):
        command = [sys.executable, "-m", "tests.gpu.random_batches", "--engine", str(number), "--count", str(share)]
        command += ["--seed", str(arguments.seed + number * share), "--folder", str(arguments.folder)]
        here = {**os.environ, "CUDA_VISIBLE_DEVICES": str(number % device_count())}
        processes.append(subprocess.Popen(command, cwd=ROOT, env=here, stderr=subprocess.PIPE, text=True))
    failed = 0
    for entry, process in zip(ENTRIES, processes, strict=True):
        said = process.communicate()[1].strip().splitlines()
        failed += process.returncode != 0
        print(f"{entry.key:60s} {share} batches: {'right' if process.returncode == 0 else said[-1:]}", flush=True)
    seconds = round(time.monotonic() - start, 1)
    record = {"engines": len(ENTRIES), "batches": share * len(ENTRIES), "failed": failed, "seconds": seconds}
    if arguments.results is not None:
        append_record(arguments.results, {**record, "seed": arguments.seed, **environment()})
    print(f"{len(ENTRIES) - failed} passed, {failed} failed ({share * len(ENTRIES)} batches, {seconds} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
