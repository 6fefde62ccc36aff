# SPDX-License-Identifier: Apache-2.0
"""Bulk work on small packed models: inputs, jobs in this process, and the command in processes that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from padfree.bulk import Finished, LocalWorkers, Request, Running, WorkerSpec, embed, on_cpu

from .served_models import DIGEST as DIGEST
from .served_models import write_embedder as write_embedder
from .served_models import write_reranker as write_reranker

SENTENCE = "the a cat dog runs over my house while it rains , and nobody knows why 3 times . don't x-ray qzxj café"
WORDS = SENTENCE.split()


def texts(count: int, seed: int = 0, most: int = 30) -> list[str]:
    """Random texts of 1 to `most` words; the same seed gives the same texts."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, most))) for _ in range(count)]


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    """Writes rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run_here(request: Request, workers: int = 1, *, read_back: bool = True, threads: int = 1) -> Finished:
    """Runs a job with this process as the driver."""

    def make(spec: WorkerSpec) -> LocalWorkers:
        return LocalWorkers(spec, *on_cpu(workers))

    return embed(request, Running(tokenizers=1, cpu_threads=threads, runs=1), make, read_back=read_back)


def result_files(output: Path) -> dict[str, bytes]:
    """The files that make up the result, by name: the parts and the bad rows."""
    return {path.name: path.read_bytes() for path in [*output.glob("part-*"), *output.glob("_bad/*")]}


def parts_of(output: Path) -> int:
    """How many parts have been written."""
    return len(list(output.glob("part-*.parquet")))


def wait_until_steady(output: Path, steady_s: float = 2.0) -> None:
    """Waits until no new part has come for `steady_s`: a stopped driver's workers have nothing left to do."""
    count, since = parts_of(output), time.monotonic()
    while time.monotonic() < since + steady_s:
        time.sleep(0.05)
        if parts_of(output) != count:
            count, since = parts_of(output), time.monotonic()


class Command:
    """`padfree embed` in a process of its own.

    Args:
        arguments: after the subcommand's name.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "padfree.builder.cli", "embed", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        """Kills the driver with SIGKILL, and nothing else."""
        self.process.kill()
        self.process.communicate()

    def end(self, timeout_s: float = 180.0) -> tuple[int, str]:
        """Waits for the end; returns the exit code and what was written to stderr."""
        _, errors = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, errors

    def wait_for_parts(self, output: Path, count: int, timeout_s: float = 120.0) -> bool:
        """Waits until so many parts are there; returns False if the command ended before."""
        until = time.monotonic() + timeout_s
        while parts_of(output) < count:
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < until, f"{parts_of(output)} parts of {count}: {self.process.args}"
            time.sleep(0.02)
        return True

    def wait_at_random(self, output: Path, rng: random.Random) -> bool:
        """Waits for a few more parts, and then for a moment; returns False if the command ended before."""
        there = self.wait_for_parts(output, parts_of(output) + rng.randint(1, 6))
        time.sleep(rng.uniform(0, 0.15))
        return there

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stops the driver for a while: workers finish what they have, and get no more work."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def kill_one(self, rng: random.Random, mark: str = "spawn_main") -> bool:
        """Kills one of the driver's processes at random; returns False if there is none at the moment."""
        pids = children(self.process.pid, mark)
        if pids:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(pids), signal.SIGKILL)
        return bool(pids)


def children(pid: int, mark: str) -> list[int]:
    """Child processes of a process whose command line contains `mark`."""
    results = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                with suppress(OSError):
                    if mark in Path(f"/proc/{child}/cmdline").read_text():
                        results.append(child)
                results += children(child, mark)
    return results
