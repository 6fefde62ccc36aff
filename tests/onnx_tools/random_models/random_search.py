# SPDX-License-Identifier: Apache-2.0
"""A search through random graphs in processes of its own, so that every core can take part.

    python -m tests.onnx_tools.random_models.random_search SEED FIRST COUNT [PROCESSES] [--record FILE]

runs cases FIRST to FIRST + COUNT - 1 of a seed. A case whose answers differ, or that ends its process, is printed with
its number and program at once, and the search goes on; exit code 1 in the end. `--record` appends a JSON line with the
commit, the seed, the range, and the numbers of wrong cases after every piece: what a file has of this commit and seed
is not run again, so that a search that was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from padfree.builder.bench.environment import append_record, commit

from tests.onnx_tools.evaluator import evaluate
from tests.support.threads import ONE_THREAD

from .random_graphs import OPERATIONS, Step, describe
from .test_random_graphs import IN_ONNXRUNTIME, rewrite_program, run

PIECE = 500  # cases between two records
BETWEEN_COLLECTIONS = 100  # cases; reference cycles between a graph's nodes and tensors are freed only then
SECONDS_BETWEEN_LINES = 10.0
ROOT = Path(__file__).resolve().parents[3]
RIGHT, REFUSED = "right", "refused"  # a worker's answers for a case; any other answer says what is wrong with it


def case(seed: int, number: int) -> tuple[list[Step], int, int, str]:
    """The steps of a program, its outputs, its pooling, and the interface to rewrite it for."""
    rng = random.Random(f"{seed}/{number}")
    steps = [
        (rng.randrange(len(OPERATIONS)), rng.randrange(100), rng.randrange(100)) for _ in range(rng.randrange(1, 7))
    ]
    return steps, rng.randrange(100), rng.randrange(100), rng.choice(["packed", "padded"])


def verdict(seed: int, number: int) -> str:
    """The outcome of one case."""
    steps, outputs, pooling, interface = case(seed, number)
    runs = (evaluate, run) if number % IN_ONNXRUNTIME == 0 else (evaluate,)
    try:
        return REFUSED if rewrite_program(steps, outputs, pooling, interface, runs) is None else RIGHT
    except Exception:
        return f"{interface}, outputs {outputs}, pooling {pooling}: {describe(steps)}\n{traceback.format_exc()}"


def work(seed: int) -> None:
    """Runs a worker: reads ranges `FIRST COUNT`, one per line, and answers each of their cases with a line."""
    gc.freeze()
    gc.disable()  # a collection traverses everything that onnx has imported
    for line in sys.stdin:
        first, count = (int(word) for word in line.split())
        for number in range(first, first + count):
            sys.stdout.write(json.dumps(verdict(seed, number)) + "\n")
            sys.stdout.flush()
            if number % BETWEEN_COLLECTIONS == 0:
                gc.collect()


class Worker:
    """A process that runs cases; one that died is started again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._process: subprocess.Popen[str] | None = None

    def verdicts(self, piece: range) -> Iterator[tuple[int, str]]:
        """The cases of a piece with their outcomes."""
        waiting = piece
        while waiting:
            at = waiting.start
            answers = self._ask(waiting)
            for at in waiting:
                line = answers.readline()
                if not line:
                    break
                yield at, json.loads(line)
            else:
                return
            yield at, f"its process ended with {self.close()}"
            waiting = range(at + 1, piece.stop)

    def close(self) -> int | None:
        """Ends the process; returns its exit code."""
        if self._process is None:
            return None
        assert self._process.stdin is not None
        self._process.stdin.close()
        code, self._process = self._process.wait(), None
        return code

    def _ask(self, piece: range) -> IO[str]:
        if self._process is None:
            command = [sys.executable, "-W", "ignore", "-m", "tests.onnx_tools.random_models.random_search"]
            self._process = subprocess.Popen(
                [*command, str(self._seed)],
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{piece.start} {len(piece)}\n")
        self._process.stdin.flush()
        return self._process.stdout


def done_before(record: Path | None, seed: int) -> set[int]:
    """The cases that a file already has for this commit and seed."""
    if record is None or not record.exists():
        return set()
    records = [json.loads(line) for line in record.read_text().splitlines()]
    same = [item for item in records if item["seed"] == seed and item["commit"] == commit()]
    return {number for item in same for number in range(item["first"], item["first"] + item["count"])}


def pieces_of(first: int, count: int, done: set[int]) -> list[range]:
    """The remaining part of a range, in pieces."""
    results: list[range] = []
    for number in range(first, first + count):
        if number in done:
            continue
        if results and results[-1].stop == number and len(results[-1]) < PIECE:
            results[-1] = range(results[-1].start, number + 1)
        else:
            results.append(range(number, number + 1))
    return results


def search(seed: int, pieces: list[range], processes: int, record: Path | None) -> int:
    """Runs all pieces; returns how many cases were wrong."""
    begun_at = commit()  # the commit that the workers run, even if another is made meanwhile
    waiting, lock, counts = queue.SimpleQueue[range](), threading.Lock(), {RIGHT: 0, REFUSED: 0, "wrong": 0}
    for piece in pieces:
        waiting.put(piece)

    def take() -> None:
        worker = Worker(seed)
        while True:
            try:
                piece = waiting.get_nowait()
            except queue.Empty:
                break
            wrong = list[int]()
            refused = 0
            for number, said in worker.verdicts(piece):
                kind = said if said in counts else "wrong"
                refused += kind == REFUSED
                with lock:
                    counts[kind] += 1
                    if kind == "wrong":
                        wrong.append(number)
                        say(f"case {number} of seed {seed} is wrong: {said}")
            if record is not None:
                item = {"commit": begun_at, "seed": seed, "first": piece.start, "count": len(piece), "wrong": wrong}
                with lock:
                    append_record(record, {**item, REFUSED: refused})
        worker.close()

    begin, total = time.monotonic(), sum(len(piece) for piece in pieces)
    threads = [threading.Thread(target=take) for _ in range(min(processes, len(pieces)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(SECONDS_BETWEEN_LINES)
            done, seconds = sum(counts.values()), time.monotonic() - begin
            say(f"{done} of {total} graphs, {counts['wrong']} wrong, {done / seconds:.1f} per second")
    right = counts[RIGHT] + counts[REFUSED]
    say(f"{right} passed, {counts['wrong']} failed (seed {seed}; {counts[REFUSED]} rightly refused)")
    return counts["wrong"]


def say(text: str) -> None:
    """Writes a line and flushes it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Runs the cases that the command line names; given only a seed, those read from standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("first", type=int, nargs="?")
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("processes", type=int, nargs="?", default=1)
    parser.add_argument("--record", type=Path, help="JSON lines that get one for every piece")
    arguments = parser.parse_args()
    if arguments.first is None:
        work(arguments.seed)
        return 0
    done = done_before(arguments.record, arguments.seed)
    return (
        1
        if search(
            arguments.seed, pieces_of(arguments.first, arguments.count, done), arguments.processes, arguments.record
        )
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
