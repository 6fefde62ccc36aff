# SPDX-License-Identifier: Apache-2.0
"""Tokens per second from a parquet file of texts to parquet files of vectors, on one GPU and on several.

    python -m benchmarks.bulk --minilm all-MiniLM-L6-v2 --lengths squad_lengths.npy --json bulk.jsonl

MiniLM-L6 from its folder, and an encoder of BERT-base's shape with random weights; texts have the lengths of a file,
and each of them comes several times. Beside the job are the rate of a Session alone, which gets the same tokens ready
made, and on MiniLM sentence-transformers' encode with one process per GPU. Rates are those while every GPU has work,
without the start of processes. `idle` is the share of time without a batch under way, `gpu_idle` that without a kernel,
as nvidia-smi samples it on the first GPU in the same time.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from padfree.bulk import LocalWorkers, Request, Running, embed, one_a_gpu
from padfree.runtime import Session
from padfree.runtime.budget import cut
from pyarrow import parquet
from tokenizers import Tokenizer

from benchmarks.command import json_parser, keep

from ..load.texts import spell, text_of
from .measurement import Steady, gpu_use

SHARD_ROWS = 16384
MOST_TOKENIZERS = 6  # tokenizing processes per GPU
MAX_TOKENS, MAX_BATCH, MAX_LENGTH = 32768, 512, 384
PROFILE = ("--precision", "fp16", "--max-batch", str(MAX_BATCH), "--max-tokens", str(MAX_TOKENS))
SECONDS = {"minilm": 24.0, "bert-base": 16.0}
"""About how long one GPU should work."""
GUESS = {"minilm": 14e6, "bert-base": 2.6e6}
"""Rough tokens per second of one GPU, only used to choose the number of texts."""


@dataclass(frozen=True)
class Data:
    """Some texts, and a parquet file in which each of them occurs several times."""

    file: Path
    texts: list[str]
    tokenizer: Path


def make_texts(lengths: Path, tokenizer: Path) -> list[str]:
    """Texts with the given numbers of tokens, or slightly fewer."""
    library = Tokenizer.from_file(str(tokenizer))
    library.no_padding()
    library.no_truncation()
    rng = np.random.default_rng(0)
    words = spell(library, rng)
    return [text_of(int(length), words, rng) for length in np.load(lengths)]


def write_texts(file: Path, texts: list[str], times: int, tokenizer: Path) -> Data:
    """Writes a file in which every text occurs `times` times."""
    rows = itertools.chain.from_iterable(itertools.repeat(texts, times))
    with parquet.ParquetWriter(file, pa.schema([("text", pa.string())]), use_dictionary=False) as writer:
        while group := list(itertools.islice(rows, SHARD_ROWS)):
            writer.write_table(pa.table({"text": group}))
    return Data(file, texts, tokenizer)


def start_builds(folder: Path, minilm: Path, models: Sequence[str]) -> dict[str, tuple[Path, subprocess.Popen[bytes]]]:
    """Starts the builds of all plans at the same time, on two GPUs if there are two."""
    from ..models import make

    started = {}
    for number, name in enumerate(models):
        source = [str(minilm)] if name == "minilm" else [str(make(name, folder).onnx), "--pooling", "mean"]
        plan = folder / f"{name}.plan"
        length = ("--max-seq-len", str(MAX_LENGTH)) if name == "bert-base" else ()
        command = [sys.executable, "-W", "ignore", "-m", "padfree.builder.cli", "build", *source, *PROFILE, *length]
        process = subprocess.Popen(
            [*command, "--no-verify", "-o", str(plan)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": str(number % visible_gpus())},
            stdout=subprocess.DEVNULL,
        )
        started[name] = plan, process
    return started


def visible_gpus() -> int:
    """The number of GPUs."""
    lines = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return len(lines.splitlines())


def session_rate(plan: Path, data: Data, max_length: int) -> float:
    """Tokens per second of a Session that gets sorted tokens, two runs at once: the best of three rounds."""
    from concurrent.futures import ThreadPoolExecutor

    library = Tokenizer.from_file(str(data.tokenizer))
    library.no_padding()
    library.enable_truncation(max_length)
    rows = sorted((encoding.ids for encoding in library.encode_batch_fast(data.texts)), key=len, reverse=True)
    with Session(plan, cuda_graphs=False) as session, ThreadPoolExecutor(2) as pool:
        runs = [rows[run] for run in cut(map(len, rows), session.budget)]
        packed = [(np.concatenate(run).astype(np.int32), [len(row) for row in run]) for run in runs]
        best = 0.0
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(lambda run: session.run_packed(*run), packed))
            best = max(best, sum(map(len, rows)) / (time.perf_counter() - start))
    return best


def job(plan: Path, data: Data, output: Path, gpus: int, tokenizers: int, runs: int) -> dict[str, Any]:
    """Runs one job; returns its figures, and the digest of its result."""
    steady = Steady()
    request = Request(
        [str(data.file)], str(output), plan, tokenizer=data.tokenizer, shard_rows=SHARD_ROWS, dtype="float16"
    )
    running = Running(tokenizers=tokenizers, runs=runs)
    with gpu_use(0) as use:
        report = embed(
            request,
            running,
            lambda spec: LocalWorkers(spec, *one_a_gpu([str(gpu) for gpu in range(gpus)])),
            on_progress=steady,
        ).report
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in sorted(output.glob("part-*")))).hexdigest()
    return {
        "tokens_a_second": round(steady.tokens_a_second),
        "cores": round(steady.cores, 1),
        "tokenizers_a_gpu": tokenizers,
        "runs": runs,
        "idle": [round(worker.idle or 0.0, 4) for worker in report.workers],
        "gpu_idle": use.idle(*steady.span),
        "texts": report.texts,
        "tokens": report.tokens,
        "bad": dict(report.bad),
        "seconds_with_start": round(report.seconds, 2),
        "sha256": digest[:16],
    }


def others(folder: Path, data: Data, gpus: int, texts: int) -> Iterator[dict[str, Any]]:
    """Measures sentence-transformers' own encode in fp16, with one process per GPU."""
    import sentence_transformers
    import torch

    model = sentence_transformers.SentenceTransformer(
        str(folder), device="cuda:0", model_kwargs={"torch_dtype": torch.float16}
    )
    some = (data.texts * (texts // len(data.texts) + 1))[:texts]
    encodings = Tokenizer.from_file(str(data.tokenizer))
    encodings.no_padding()
    encodings.enable_truncation(model.max_seq_length)
    tokens = sum(len(encoding) for encoding in encodings.encode_batch_fast(some))
    pool = model.start_multi_process_pool([f"cuda:{gpu}" for gpu in range(gpus)])
    try:
        model.encode(some[: 512 * gpus], pool=pool, batch_size=128)
        for batch in (128, 512):
            start = time.perf_counter()
            model.encode(some, pool=pool, batch_size=batch)
            seconds = time.perf_counter() - start
            yield {"batch": batch, "tokens_a_second": round(tokens / seconds), "tokens": tokens}
    finally:
        model.stop_multi_process_pool(pool)


def main() -> None:
    """Measures, prints and records."""
    parser = json_parser(__doc__, "one line per measurement")
    parser.add_argument("--minilm", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--lengths", type=Path, required=True, help=".npy of texts' tokens")
    parser.add_argument("--models", nargs="+", choices=SECONDS, default=["bert-base", "minilm"])
    parser.add_argument("--runs", type=int, default=Running.runs, help="batches under way at once on a GPU")
    arguments = parser.parse_args()
    cores, count = len(os.sched_getaffinity(0)), visible_gpus()
    tokenizer = arguments.minilm / "tokenizer.json"

    def record(case: str, result: dict[str, Any]) -> None:
        print(case, result, flush=True)
        keep(arguments.json, {"case": case, **result, "machine_cores": cores})

    with tempfile.TemporaryDirectory(prefix="padfree-bulk-") as name:
        folder = Path(name)
        builds = start_builds(folder, arguments.minilm, arguments.models)
        texts = make_texts(arguments.lengths, tokenizer)
        for model in arguments.models:
            longest = 256 if model == "minilm" else MAX_LENGTH
            mean = float(np.minimum(np.load(arguments.lengths), longest).mean())
            times = max(1, round(SECONDS[model] * GUESS[model] / mean / len(texts)))
            data = write_texts(folder / f"{model}.parquet", texts, times, tokenizer)
            plan, process = builds[model]
            if process.wait():
                raise SystemExit(f"the plan of {model} could not be built")
            alone = session_rate(plan, data, longest)
            record(f"{model}, Session with tokens", {"tokens_a_second": round(alone)})
            results = []
            for gpus in [gpus for gpus in (1, 2, 4) if gpus <= count]:
                processes = max(1, min(cores // gpus - 4, MOST_TOKENIZERS))
                result = job(plan, data, folder / f"{model}-{gpus}", gpus, processes, arguments.runs)
                results.append(result)
                shares = {
                    "of_session": round(result["tokens_a_second"] / alone / gpus, 3),
                    "of_one_gpu": round(result["tokens_a_second"] / results[0]["tokens_a_second"], 3),
                    "same_bits_as_one_gpu": result["sha256"] == results[0]["sha256"],
                }
                record(f"{model}, {gpus} GPU", {**result, **shares})
            if model == "minilm":
                for result in others(arguments.minilm, data, count, 40_000):
                    ratio = results[-1]["tokens_a_second"] / result["tokens_a_second"]
                    record(f"{model}, sentence-transformers, {count} GPU", {**result, "padfree_times": round(ratio, 2)})


if __name__ == "__main__":
    main()
