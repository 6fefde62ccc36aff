# SPDX-License-Identifier: Apache-2.0
"""Chooses the cases of a sweep that are left, and measures them."""

from __future__ import annotations

import argparse
import functools
import json
import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .cases import EVERYTHING, SETS, SweepCase
from .engines import build_padded

OURS, PADDED = "padfree", "TensorRT padded"
MAX_ERROR_RATIO = 2.0
"""Our error against fp32 may be at most this multiple of PyTorch's in fp16."""

Done = set[tuple[str, str]]


def done_cases(path: Path | None) -> Done:
    """The case and commit of every record in the file."""
    if path is None or not path.exists():
        return set()
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    return {(record["case"], record["commit"]) for record in records}


def choose(
    sets: Iterable[str], done: Done, commit: str, pattern: str = "", peers: Collection[str] = EVERYTHING
) -> list[SweepCase]:
    """The cases of some sets that are still to be measured, with those of their peers that are wanted.

    pattern: a regular expression for their names.
    """
    cases = [case for name in sets for case in SETS[name] if (case.name, commit) not in done]
    cases = [case for case in cases if re.search(pattern, case.name)]
    return [replace(case, peers=tuple(peer for peer in case.peers if peer in peers)) for case in cases]


def run(cases: list[SweepCase], folder: Path, arguments: argparse.Namespace) -> int:
    """Measures the cases, one record each, or only builds their padded engines.

    A case that fails is printed and skipped, unless the process has lost the GPU.
    """
    deadline = time.monotonic() + 60 * arguments.minutes
    read_model = model_reader(arguments.models or folder)
    if arguments.build_only:
        cache = arguments.timing_cache
        missing = build_padded(
            cases, arguments.part, read_model=read_model, folder=folder, timing_cache=cache, deadline=deadline, say=say
        )
        return 1 if missing else 0
    failed = 0
    for count, case in enumerate(cases, 1):
        if time.monotonic() > deadline:
            say(f"time is up: {len(cases) - count + 1} cases left, run again to measure them")
            return 1
        try:
            record = measure_case(case, read_model(case.model, case.precision), folder, arguments)
            failed += not record["passed"]
            say(f"[{count}/{len(cases)}] {line(record)}")
        except Exception as error:  # the other cases can still be measured
            failed += 1
            say(f"[{count}/{len(cases)}] {case.name}: FAILED: {explain(error)}")
            if gpu_is_lost():
                say(f"this process has lost the GPU: {len(cases) - count} cases left, run again to measure them")
                return 1
    return 1 if failed else 0


def model_reader(folder: Path) -> Callable[..., Any]:
    """Returns models by name and precision; each is exported into the folder once, and read once."""
    from padfree.builder.peers.setup import PeerModel

    from benchmarks import definitions

    folder.mkdir(parents=True, exist_ok=True)

    @functools.cache
    def files_of(name: str) -> Any:
        from benchmarks.models import make  # needs torch

        return make(name, folder)

    @functools.cache
    def read(name: str, precision: str = "fp16") -> PeerModel:
        if name in definitions.CONFIGS:
            return PeerModel(definitions.make(name, folder), precision, folder / name)
        files = files_of(name)
        return PeerModel(files.onnx, precision, files.folder)

    return read


def explain(error: BaseException) -> str:
    """An error and those that led to it, as closing what is broken fails too and would hide the cause."""
    texts = []
    chained: BaseException | None = error
    while chained is not None:
        texts.append(f"{type(chained).__name__}: {chained}".splitlines()[0])
        chained = chained.__cause__ or chained.__context__
    return "; after ".join(texts)


def gpu_is_lost() -> bool:
    """Whether CUDA refuses this process everything, as it does after an illegal memory access."""
    from padfree.runtime.gpu.cuda import runtime

    (status,) = runtime.cudaDeviceSynchronize()
    return bool(status != runtime.cudaError_t.cudaSuccess)


def measure_case(case: SweepCase, model: Any, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures one case and appends its record."""
    from padfree.builder.bench.cases import BenchCase, measure
    from padfree.builder.bench.environment import append_record

    if case.precision != "fp16":  # engines are named after model and batch
        folder = folder / case.precision
        folder.mkdir(exist_ok=True)
    record, _ = measure(
        BenchCase(model.path, case.batch, case.seq_len, case.mean, precision=case.precision, name=case.name),
        list(case.peers),
        on_cpu=False,
        folder=folder,
        timing_cache=arguments.timing_cache,
        model=model,
        profile=case.engine,
    )
    record = {"set": case.set, "model": case.model, **record, "required_speedup": case.required}
    record["shared_engine"] = asdict(case.engine) if case.engine else None
    record["passed"] = is_passed(record)
    if arguments.json:
        append_record(arguments.json, record)
    return record


def is_passed(record: dict[str, Any]) -> bool:
    """Whether the speed-up over padded TensorRT is sufficient, and the error within PyTorch's bound."""
    errors, padded = record["errors"], [time_ms for title, time_ms in record["peers_ms"].items() if PADDED in title]
    plain = [error for title, error in errors.items() if title.startswith("PyTorch eager")]
    if plain and errors[OURS] > MAX_ERROR_RATIO * plain[0]:
        return False
    required = record["required_speedup"]
    return required is None or (bool(padded) and min(padded) >= required * record["ours_ms"])


def line(record: dict[str, Any]) -> str:
    """A record as a line to read while the sweep goes on."""
    peers = ", ".join(f"{title} {time_ms:.3f}" for title, time_ms in record["peers_ms"].items())
    verdict = "" if record["passed"] else "; MISSED what is required"
    limit = "-" if record["limit_ms"] is None else f"{record['limit_ms']:.3f}"
    parts = [f"{record['case']}: {record['ours_ms']:.3f} ms, limit {limit}", peers, f"{record['seconds']} s{verdict}"]
    text = "; ".join(filter(None, parts))
    return "; without ".join([text, *(f"{title} ({reason[:100]})" for title, reason in record["unavailable"].items())])


def say(text: str) -> None:
    """Prints without buffering."""
    print(text, flush=True)
