# SPDX-License-Identifier: Apache-2.0
"""A search through random graphs in a process of its own, so that every core can take part.

python -m tests.onnx_tools.random_models.random_search SEED FIRST COUNT runs cases FIRST to FIRST + COUNT - 1 of a seed.
Exit code 1 at the first case whose answers differ, which is printed. With a number of processes behind, a long search:
as many processes share the cases, each goes on behind what it finds, and the last line has the counts.
"""

from __future__ import annotations

import contextlib
import queue
import random
import re
import subprocess
import sys
import threading
import time
import traceback

from tests.onnx_tools.evaluator import evaluate

from .random_graphs import OPERATIONS, Step, described
from .test_random_graphs import IN_ONNXRUNTIME, rewritten, run

PIECE = 2000  # cases of one process in a long search


def case(seed: int, number: int) -> tuple[list[Step], int, int, str]:
    """The steps of a program, its outputs, its pooling, and the interface to rewrite it for."""
    rng = random.Random(f"{seed}/{number}")
    steps = [
        (rng.randrange(len(OPERATIONS)), rng.randrange(100), rng.randrange(100)) for _ in range(rng.randrange(1, 7))
    ]
    return steps, rng.randrange(100), rng.randrange(100), rng.choice(["packed", "padded"])


def main() -> int:
    """Runs the cases that the command line names."""
    seed, first, count, *processes = (int(argument) for argument in sys.argv[1:])
    if processes:
        return _together(seed, first, count, processes[0])
    refused = 0
    for number in range(first, first + count):
        steps, outputs, pooling, interface = case(seed, number)
        runs = (evaluate, run) if number % IN_ONNXRUNTIME == 0 else (evaluate,)
        try:
            refused += rewritten(steps, outputs, pooling, interface, runs) is None
        except Exception:
            traceback.print_exc()
            program = f"{interface}, outputs {outputs}, pooling {pooling}: {described(steps)}"
            sys.stderr.write(f"case {number} of seed {seed}: {program}\n")
            return 1
    sys.stdout.write(f"{refused}\n")
    return 0


def _together(seed: int, first: int, count: int, processes: int) -> int:
    """Searches in pieces, so that cores that are done take the next one."""
    done = wrong = refused = 0
    pieces = queue.SimpleQueue[range]()
    for start in range(first, first + count, PIECE):
        pieces.put(range(start, min(start + PIECE, first + count)))

    def search() -> None:
        nonlocal done, wrong, refused
        while not pieces.empty():
            with contextlib.suppress(queue.Empty):
                piece = pieces.get_nowait()
                command = [
                    sys.executable,
                    "-m",
                    "tests.onnx_tools.random_models.random_search",
                    str(seed),
                    str(piece.start),
                    str(len(piece)),
                ]
                ran = subprocess.run(command, capture_output=True, text=True)
                found = re.search(r"^case (\d+) of", ran.stderr, re.MULTILINE)
                with lock:
                    if ran.returncode == 0:
                        done, refused = done + len(piece), refused + int(ran.stdout)
                        continue
                    wrong += 1
                    sys.stdout.write(f"{ran.stderr.strip().splitlines()[-1]}\n{ran.stderr[-1500:]}\n")
                    if found is None:
                        return  # it did not even start
                    number = int(found.group(1))
                    done += number + 1 - piece.start
                    if number + 1 < piece.stop:
                        pieces.put(range(number + 1, piece.stop))

    lock = threading.Lock()
    threads = [threading.Thread(target=search) for _ in range(processes)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(10, 0.01 * count))
        sys.stdout.write(f"{done} of {count} graphs, {wrong} wrong\n")
        sys.stdout.flush()
    sys.stdout.write(f"{done - wrong} passed, {wrong} failed (seed {seed}; {refused} rightly refused)\n")
    return 1 if wrong or done < count else 0


if __name__ == "__main__":
    sys.exit(main())
