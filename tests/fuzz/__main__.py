# SPDX-License-Identifier: Apache-2.0
"""Feeds damaged inputs to padfree and keeps what it does not take well.

    python -m tests.fuzz                          # every door for a minute, from a seed of the clock
    python -m tests.fuzz models --seconds 600 --seed 7 --processes 8

An input is taken well if padfree answers, or fails with a message of its own: no crash, no error that nobody foresaw,
no file elsewhere, no more than a minute and 6 GiB. Others are written to tests/fuzz/corpus/DOOR, which every test run
replays (tests/fuzz/test_corpus.py). Exit code 1 if there are any.

The door `lengths` is on the device: kernels have to stay in bounds for any lengths, ids and positions. It needs a GPU,
PyTorch and PADFREE_KERNELS_LIBRARY (CONTRIBUTING.md), and is left out elsewhere.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from .targets import TARGETS

CORPUS = Path(__file__).resolve().parent / "corpus"
ROOT = Path(__file__).resolve().parents[2]
SILENCE = 120.0  # seconds after which a process counts as hung


def problems(target: str, what: Sequence[str], end: float = float("inf")) -> tuple[int, dict[str, str]]:
    """How many inputs were read, and the problem of each that was not handled well.

    A process that dies is started again after the input that killed it.
    """
    done, actual, waiting = 0, dict[str, str](), list(what)
    while waiting and time.monotonic() < end:
        at = None
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.worker", target, *waiting]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            watch = _watch(process)
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                record = json.loads(line)
                at = record.get("begins", at)
                if "ends" in record:
                    done, at = done + 1, None
                    if record["problem"]:
                        actual[record["ends"]] = record["problem"]
                    watch.cancel()
                    if time.monotonic() > end:
                        process.kill()
                        return done, actual
                    watch = _watch(process)
            watch.cancel()
            died = process.wait()
        if at is None:
            if died:
                raise SystemExit(f"the process that reads {target} does not start: exit code {died}")
            break
        done, actual[at] = done + 1, f"the process ended with {died}"
        waiting = _after(waiting, at)
    return done, actual


def _watch(process: subprocess.Popen[str]) -> threading.Timer:
    """Kills a process that is silent for too long."""
    timer = threading.Timer(SILENCE, process.kill)
    timer.start()
    return timer


def _after(waiting: Sequence[str], at: str) -> list[str]:
    """The inputs that remain after this one."""
    if waiting[0].isdigit():
        first, count = int(waiting[0]), int(waiting[1])
        left = first + count - int(at) - 1
        return [str(int(at) + 1), str(left)] if left else []
    return list(waiting[list(waiting).index(at) + 1 :])


def keep(target: str, data: bytes) -> Path:
    """Adds an input to the corpus."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(data).hexdigest()[:12]}.gz"
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    return path


def search(target: str, seed: int, seconds: float, processes: int) -> int:
    """Damages and reads inputs for some time; returns how many were not handled well."""
    end, lock, counts = time.monotonic() + seconds, threading.Lock(), [0, 0]
    at_once = TARGETS[target].at_once
    numbers = iter(range(seed, seed + 10**9, at_once))

    def work() -> None:
        while time.monotonic() < end:
            with lock:
                first = next(numbers)
            done, actual = problems(target, [str(first), str(at_once)], end)
            with lock:
                counts[0] += done
                counts[1] += len(actual)
                for number, reason in actual.items():
                    path = keep(target, TARGETS[target].case(int(number)))
                    say(f"{target} {number}: {reason}\n  kept as {path.relative_to(ROOT)}")

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(f"{counts[0] - counts[1]} passed, {counts[1]} failed ({target}, seed {seed})")
    return counts[1]


def say(text: str) -> None:
    """Writes a line and flushes it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Searches at every door that is named."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("doors", nargs="*", metavar="DOOR", help=f"of {sorted(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=float, default=60, help="for each door (default 60)")
    parser.add_argument("--seed", type=int, default=None, help="default: of the clock")
    parser.add_argument("--processes", type=int, default=2, help="default 2")
    arguments = parser.parse_args()
    if unknown := set(arguments.doors) - set(TARGETS):
        parser.error(f"there is no door {sorted(unknown)}; known are {sorted(TARGETS)}")
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    actual = 0
    for door in arguments.doors or TARGETS:
        reason = TARGETS[door].missing()
        if reason is None:
            actual += search(door, seed, arguments.seconds, arguments.processes)
        elif door in arguments.doors:
            parser.error(f"the door {door} is shut: {reason}")
        else:
            say(f"{door}: left out, {reason}")
    return 1 if actual else 0


if __name__ == "__main__":
    sys.exit(main())
