# SPDX-License-Identifier: Apache-2.0
"""Sequences a second without rest: all lengths of a file, again and again, through a Session on one GPU.

    python -m benchmarks.engine.lengths --model bert-large --lengths squad_lengths.npy --json lengths.jsonl

The models are those of benchmarks.models, one vector per sequence (mean pooling). Random ids have the lengths of the
file, sorted and cut into batches by tokens; two runs are under way at once, each from NumPy arrays to NumPy arrays, for
`--seconds` at least. fp8 takes its scales from some of the sequences, as `padfree build --calibrate` does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from padfree.builder.bench.environment import append_record, environment
from padfree.runtime import Session
from padfree.runtime.budget import cut

from benchmarks.command import json_parser

from ..models import MODELS, VOCAB_SIZE, make

AT_ONCE = 2
CALIBRATING = 24
"""Sequences from which scales come; of random ids, each is like any other."""


def sequences(lengths: np.ndarray) -> list[np.ndarray]:
    """Sequences of random ids, the longest first."""
    rng = np.random.default_rng(0)
    return [rng.integers(1, VOCAB_SIZE, length, dtype=np.int32) for length in sorted(lengths.tolist(), reverse=True)]


def start_build(folder: Path, model: Path, precision: str, rows: list[np.ndarray], options: argparse.Namespace) -> Any:
    """Starts the command that builds a plan."""
    profile = [
        "--max-seq-len",
        str(len(rows[0])),
        "--max-batch",
        str(options.batch),
        "--max-tokens",
        str(options.tokens),
    ]
    if precision == "fp8":
        data = folder / "calibrating.jsonl"
        some = rows[:: len(rows) // CALIBRATING]
        data.write_text("".join(json.dumps({"input_ids": row.tolist()}) + "\n" for row in some), encoding="utf-8")
        profile += ["--calibrate", str(data)]
    command = [sys.executable, "-W", "ignore", "-m", "padfree.builder.cli", "build", str(model), "--pooling", "mean"]
    command += ["--precision", precision, "--no-verify", "-o", str(folder / f"{precision}.plan"), *profile]
    return subprocess.Popen([*command, "--timing-cache", options.timing_cache], stdout=subprocess.DEVNULL)


def rate(plan: Path, rows: list[np.ndarray], seconds: float) -> dict[str, Any]:
    """Makes whole rounds through all sequences, after one that warms up."""
    with Session(plan, contexts=AT_ONCE) as session, ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [rows[run] for run in cut(map(len, rows), session.budget)]
        packed = [(np.concatenate(run), [len(row) for row in run]) for run in runs]

        def rounds() -> Iterator[None]:
            while True:
                list(pool.map(lambda run: session.run_packed(*run), packed))
                yield

        under_way = rounds()
        next(under_way)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            next(under_way)
            count += 1
        taken = time.perf_counter() - start
    tokens = sum(map(len, rows))
    return {
        "sequences_per_s": round(count * len(rows) / taken),
        "tokens_per_s": round(count * tokens / taken),
        "seconds": round(taken, 1),
        "sequences": len(rows),
        "mean_length": round(tokens / len(rows), 1),
        "batches": len(runs),
    }


def main() -> None:
    """Builds, measures, prints and records."""
    parser = json_parser(__doc__, "one line per precision")
    parser.add_argument("--model", choices=MODELS, default="bert-large")
    parser.add_argument("--lengths", type=Path, required=True, help=".npy of tokens a sequence")
    parser.add_argument("--precisions", nargs="+", choices=("fp16", "fp8"), default=["fp16", "fp8"])
    parser.add_argument("--tokens", type=int, default=16384, help="of a batch at most")
    parser.add_argument("--batch", type=int, default=512, help="sequences of a batch at most")
    parser.add_argument("--seconds", type=float, default=60.0, help="of every precision, at least")
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    arguments = parser.parse_args()
    rows = sequences(np.load(arguments.lengths))
    with tempfile.TemporaryDirectory(prefix="padfree-lengths-") as name:
        folder = Path(name)
        model = make(arguments.model, folder).onnx
        builds = {each: start_build(folder, model, each, rows, arguments) for each in arguments.precisions}
        for precision, build in builds.items():
            if build.wait():
                raise SystemExit(f"the plan in {precision} could not be built")
        for precision in builds:
            result = rate(folder / f"{precision}.plan", rows, arguments.seconds)
            record = {"case": f"{arguments.model}, {precision}, {arguments.lengths.stem}", **result}
            print(record, flush=True)
            if arguments.json:
                append_record(arguments.json, {**record, "tokens_a_batch": arguments.tokens, **environment()})


if __name__ == "__main__":
    main()
