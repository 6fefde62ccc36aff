# SPDX-License-Identifier: Apache-2.0
"""A search through random graphs in a process of its own, so that every core can take part.

python -m tests.onnx_tools.random_search SEED FIRST COUNT runs cases FIRST to FIRST + COUNT - 1 of a seed. Exit code 1
at the first case whose answers differ, which is printed.
"""

from __future__ import annotations

import random
import sys
import traceback

from .evaluator import evaluate
from .random_graphs import OPERATIONS, Step, described
from .test_random_graphs import IN_ONNXRUNTIME, rewritten, run


def case(seed: int, number: int) -> tuple[list[Step], int, int, str]:
    """The steps of a program, its outputs, its pooling, and the interface to rewrite it for."""
    rng = random.Random(f"{seed}/{number}")
    steps = [
        (rng.randrange(len(OPERATIONS)), rng.randrange(100), rng.randrange(100)) for _ in range(rng.randrange(1, 7))
    ]
    return steps, rng.randrange(100), rng.randrange(100), rng.choice(["packed", "padded"])


def main() -> int:
    """Runs the cases that the command line names."""
    seed, first, count = (int(argument) for argument in sys.argv[1:])
    for number in range(first, first + count):
        steps, outputs, pooling, interface = case(seed, number)
        runs = (evaluate, run) if number % IN_ONNXRUNTIME == 0 else (evaluate,)
        try:
            rewritten(steps, outputs, pooling, interface, runs)
        except Exception:
            traceback.print_exc()
            program = f"{interface}, outputs {outputs}, pooling {pooling}: {described(steps)}"
            sys.stderr.write(f"case {number} of seed {seed}: {program}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
