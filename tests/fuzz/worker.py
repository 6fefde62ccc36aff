# SPDX-License-Identifier: Apache-2.0
"""Reads damaged inputs one after the other, in a process that may die of them; the parent reads what it prints."""

from __future__ import annotations

import json
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .finds import FindError
from .targets import TARGETS

SECONDS = 60


class LateError(Exception):
    """Raised if an input takes too long."""


def late(_number: int, _frame: Any) -> None:
    """The alarm's handler."""
    raise LateError(f"not done after {SECONDS} s")


def problem(target: str, data: bytes) -> str | None:
    """What is wrong with how one damaged input is handled; None if nothing is."""
    signal.alarm(SECONDS)
    try:
        with tempfile.TemporaryDirectory(prefix="padfree-fuzz-") as outer:
            folder = Path(outer) / "input"
            folder.mkdir()
            TARGETS[target].read(data, folder)
    except (FindError, LateError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return None


def say(**record: Any) -> None:
    """Writes a line for the parent."""
    sys.__stdout__.write(json.dumps(record) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def main(target: str, what: list[str]) -> None:
    """Reads the inputs that `what` gives: seeds as FIRST COUNT, or files."""
    most = TARGETS[target].most_bytes
    if most is not None:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGALRM, late)
    cases: list[tuple[str, bytes | int]]
    if what[0].lstrip("-").isdigit():
        first, count = int(what[0]), int(what[1])
        cases = [(str(seed), seed) for seed in range(first, first + count)]
    else:
        cases = [(name, Path(name).read_bytes()) for name in what]
    for name, source in cases:
        say(begins=name)
        start = time.monotonic()
        actual = problem(target, TARGETS[target].case(source) if isinstance(source, int) else source)
        say(ends=name, problem=actual, seconds=round(time.monotonic() - start, 2))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
