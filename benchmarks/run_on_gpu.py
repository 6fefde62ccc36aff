# SPDX-License-Identifier: Apache-2.0
"""Everything that only a GPU can show, in one command: tests, sanitizer, every engine, random batches, benchmarks.

    python -m benchmarks.run_on_gpu --results benchmarks/results/h200 --minutes 9

The work is in parts of some minutes at most. A part that passed is recorded in checks.jsonl with its counts, the
commit, and a digest of the files that it depends on (evidence.py). As long as these stay as they are, at later commits
too, it is not run again on the same kind of GPU: call the command until nothing is left. A part whose tests were all
skipped, for want of TensorRT or Triton, has run nothing, and is tried again. On a machine of several GPUs, as many
parts run at once, each with a GPU of its own; `--at-once` lets several tests share a GPU, but no two of the
sanitizer's. Benchmarks, and tests that take most of a GPU's memory, come after them, alone. `--minutes` starts nothing
that would take longer than what is left; `--list` names the parts. Exit code 1 if a part fails or is left.

Needs padfree installed with its plugin library, TensorRT, PyTorch, transformers, and libpadfree_kernels.so named by
PADFREE_KERNELS_LIBRARY (built with -DPADFREE_KERNEL_TESTS=ON). PADFREE_PERTURBED_LIBRARY may name a second one, built
with -DPADFREE_PERTURB=ON as well, and PADFREE_RUN_PLAN the program of examples/cpp.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from padfree.builder.bench.environment import append_record, environment

from .evidence import sources

ROOT = Path(__file__).resolve().parent.parent
PYTHON = (sys.executable, "-W", "ignore")
PYTEST = (*PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu")
WORKERS = ("-n", "4") if importlib.util.find_spec("xdist") else ()  # launch and compare: one process leaves a GPU idle
SANITIZER = (
    *("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", "--launch-timeout", "120"),
    *("--kernel-name", "kernel_substring=padfree"),  # excludes PyTorch's kernels, which compute the truth
)
NOTHING_RUN = 5  # pytest's exit code if all tests of a file are skipped at once, or none is for a GPU
LINES_OF_FAILURE = 30
REASON = re.compile(r"E {2,}\S|=+ (Program hit|Invalid|Misaligned|Internal|Uninitialized|Out of|Race|Barrier)")
"""How lines start in which pytest, or the sanitizer, says what is wrong."""
REASONS = 5  # the most different ones that are kept of a part that failed
LARGE = ("many_elements",)  # tests of kernels that take most of a GPU's memory
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|left|errors?)\b")


@dataclass(frozen=True)
class Part:
    """One command, run in the repository's root; `minutes` is the most that it takes on an H200."""

    name: str
    command: tuple[str, ...]
    minutes: float = 3
    environment: Mapping[str, str] = field(default_factory=dict)
    whole_machine: bool = False  # takes all GPUs or all cores by itself
    alone: bool = False  # needs a GPU to itself: otherwise its measurements mean nothing, or memory runs out
    large: bool = False  # takes half of a GPU's memory: no two of them share one


def tests_in(folder: str) -> dict[str, str]:
    """The test files in a folder of the repository, by what they are named after."""
    files = sorted((ROOT / folder).glob("test_*.py"))
    return {file.stem.removeprefix("test_"): f"{folder}/{file.name}" for file in files}


def parts(results: Path, timing_cache: str) -> list[Part]:
    """All parts: those that use the whole machine, tests, and benchmarks."""
    cache = ("--timing-cache", timing_cache)
    delayed = {"PADFREE_KERNELS_LIBRARY": os.environ.get("PADFREE_PERTURBED_LIBRARY", "")}
    kernels = {name: (*PYTEST, *WORKERS, path) for name, path in tests_in("tests/kernels").items()}
    engines = {name: (*PYTEST, path) for name, path in tests_in("tests/gpu").items()}

    def recorded_part(name: str) -> tuple[str, str]:
        return ("--json", str(results / f"{name}.jsonl"))

    def measured_part(name: str, *more: str) -> tuple[str, ...]:
        return (*PYTHON, "-m", f"benchmarks.{name}", *more)

    matrix = ("-m", "tests.gpu.engine_matrix", "--results", str(results / "engines.jsonl"))
    batches = ("-m", "tests.gpu.random_batches", "--count", "100000", "--results", str(results / "batches.jsonl"))
    collected = [Part("engine matrix", (*PYTHON, *matrix), 8, whole_machine=True)]
    collected += [Part("random batches", (*PYTHON, *batches), 5, whole_machine=True)]
    collected += [Part(f"kernels: {name}", command, alone=name in LARGE) for name, command in kernels.items()]
    if delayed["PADFREE_KERNELS_LIBRARY"]:
        collected += [
            Part(f"kernels with delays: {name}", command, environment=delayed, alone=name in LARGE)
            for name, command in kernels.items()
        ]
    collected += [
        Part(f"memcheck: {name}", (*SANITIZER, *PYTEST, path), 5, large=True)
        for name, path in tests_in("tests/kernels").items()
        if name not in LARGE  # the sanitizer would take hours for them
    ]
    collected += [Part(f"engines: {name}", command) for name, command in engines.items()]
    collected += [Part(name, (*PYTEST, f"tests/{name}")) for name in ("plugins", "integrations", "examples")]
    collected += [Part("fuzzing: lengths", (*PYTHON, "-m", "tests.fuzz", "lengths", "--seconds", "120"))]
    positions = ("sweep", "--sets", "positions", "--cases")
    benchmarks = {
        "attention": (measured_part("attention", *recorded_part("attention")), 6),
        "memory-bound kernels": (measured_part("kernels.rows", *recorded_part("rows")), 4),
        "products": (measured_part("kernels.linear", *recorded_part("linear")), 6),
        "products of e4m3": (measured_part("kernels.linear_e4m3", *recorded_part("linear_e4m3")), 3),
        "timeline": (measured_part("engine.timeline", *recorded_part("timeline"), *cache), 3),
        "memory": (measured_part("engine.memory", *recorded_part("memory"), *cache), 4),
        "session": (measured_part("engine.session", *recorded_part("session"), *cache), 4),
        "end to end": (measured_part("sweep", "--sets", "targets", *recorded_part("end_to_end"), *cache), 8),
        "attention with positions": (
            measured_part("attention", "--positions", *recorded_part("attention_positions")),
            5,
        ),
        "windows, rotary": (measured_part(*positions, "modernbert|nomic", *recorded_part("end_to_end"), *cache), 6),
        "biases": (measured_part(*positions, "bert-base|mpnet|t5|deberta", *recorded_part("end_to_end"), *cache), 8),
        "small encoders": (measured_part("sweep", "--sets", "small", *recorded_part("end_to_end"), *cache), 8),
        "products of e4m3 in encoders": (
            measured_part("sweep", "--sets", "fp8", *recorded_part("end_to_end"), *cache),
            8,
        ),
        "precisions": (measured_part("sweep", "--sets", "precisions", *recorded_part("end_to_end"), *cache), 4),
        "sentence-transformers": (
            measured_part("integrations.sentence_transformers", *recorded_part("integrations")),
            4,
        ),
        "trained models": (measured_part("accuracy", *recorded_part("trained")), 9),
    }
    collected += [Part(f"benchmark: {n}", command, most, alone=True) for n, (command, most) in benchmarks.items()]
    return collected


def is_evidence(record: Mapping[str, Any]) -> bool:
    """Whether a part passed, and not because all of its tests were skipped."""
    return record["status"] == 0 and record.get("passed") != 0


def passed_before(checks: Path, wanted: Iterable[Part], gpu: str | None) -> dict[str, str]:
    """The parts that passed with the present files on such a GPU, and at which commit."""
    if not checks.exists():
        return {}
    stands = {part.name: sources(part.command) for part in wanted}
    records = [json.loads(line) for line in checks.read_text().splitlines()]
    return {
        item["step"]: item["commit"]
        for item in records
        if is_evidence(item)
        and item.get("sources", "none") == stands.get(item["step"])
        and gpu in (None, item.get("gpu"))
    }


def counts_of(summary: str) -> dict[str, int]:
    """The numbers in a closing line such as `3 passed, 1 failed`."""
    return {
        name.rstrip("s") if name.startswith("error") else name: int(count) for count, name in COUNTS.findall(summary)
    }


def run(part: Part, gpu: str | None) -> dict[str, Any]:
    """Runs one part; the record has its closing line, counts if there are any, and reasons for a failure."""
    start = time.monotonic()
    here = {**os.environ, **part.environment, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})}
    process = subprocess.Popen(
        part.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=here
    )
    assert process.stdout is not None
    last = closing = ""
    end = collections.deque[str](maxlen=LINES_OF_FAILURE)
    reasons = dict[str, None]()
    for line in process.stdout:
        end.append(line)
        if len(reasons) < REASONS and REASON.match(line):
            reasons[line.strip()[:300]] = None
        if gpu is None:
            print(line, end="", flush=True)
        last = line.strip() or last
        if re.match(r"=*\s*\d+ (passed|failed|skipped|deselected)", last) or re.match(r"(FAILED|ERROR) ", last):
            closing = last.strip("= ") if last[0] not in "FE" else closing
            if last[0] in "FE":
                print(f"{part.name}: {last}", flush=True)
    status = process.wait()
    counts = counts_of(closing)
    if status in (0, NOTHING_RUN) and ("skipped" in closing or "deselected" in closing):
        status = 0
        counts.setdefault("passed", 0)  # all of them were skipped: no evidence
    if status and gpu is not None:
        print(f"{part.name} ended with:\n{''.join(end)}", "\n".join(reasons), flush=True)
    seconds, summary = round(time.monotonic() - start, 1), closing or last
    record = {"step": part.name, "status": status, "seconds": seconds, "summary": summary, **counts}
    why = {"reasons": list(reasons)} if status else {}
    return {**record, **why, "sources": sources(part.command)}


def run_all(waiting: Sequence[Part], gpus: Sequence[str], end: float, done: Any, at_once: int = 1) -> list[Part]:
    """Runs what there is time for, calls `done` with each record, and returns what is left.

    Parts that take the whole machine come first, then tests, `at_once` per GPU and the longest first, then parts that
    need a GPU to themselves.
    """
    whole = [part for part in waiting if part.whole_machine]
    tests = sorted((part for part in waiting if not (part.whole_machine or part.alone)), key=lambda part: -part.minutes)
    alone = [part for part in waiting if part.alone and not part.whole_machine]
    left = run_lanes(whole, [None], end, done)
    left += run_lanes(tests, [*gpus] * at_once if len(gpus) * at_once > 1 else [None], end, done)
    return left + run_lanes(alone, gpus if len(gpus) > 1 else [None], end, done)


def run_lanes(waiting: Sequence[Part], lanes: Sequence[str | None], end: float, done: Any) -> list[Part]:
    """Runs parts on lanes at the same time, each lane named after a GPU (None: all that are visible); returns the rest.

    Only the first lane of each GPU takes large parts.
    """
    left: list[Part] = []
    rest, lock = list(waiting), threading.Lock()

    def next_part(takes_large: bool) -> Part | None:
        with lock:
            part = next((part for part in rest if takes_large or not part.large), None)
            if part is not None:
                rest.remove(part)
            return part

    def work(gpu: str | None, takes_large: bool) -> None:
        while (part := next_part(takes_large)) is not None:
            if time.monotonic() + 60 * part.minutes > end:
                left.append(part)
            else:
                done(run(part, gpu))

    threads = [
        threading.Thread(target=work, args=(lane, lanes.index(lane) == number)) for number, lane in enumerate(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return left


def visible_gpus() -> list[str]:
    """The GPUs of this machine that this process may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return chosen.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [str(number) for number in range(len(listed))]


def table(records: Iterable[Mapping[str, Any]], left: Iterable[Part]) -> str:
    """One line per part."""
    lines = []
    for record in records:
        not_passed = f"FAILED ({record['status']})" if record["status"] else "nothing run"
        verdict = "passed" if is_evidence(record) else not_passed
        lines.append(f"{record['step']:32s} {verdict:14s} {record['seconds']:7.1f} s  {record['summary'][:120]}")
    return "\n".join([*lines, *(f"{part.name:32s} left: call the command again" for part in left)])


def main() -> int:
    """Runs the requested parts that are not done yet, and ends with a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    local = ROOT / "benchmarks" / "results" / "local"
    parser.add_argument(
        "--results", type=Path, default=local, help="where JSON goes (default: benchmarks/results/local)"
    )
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    parser.add_argument(
        "--only", nargs="*", default=["*"], metavar="PATTERN", help="names of parts, such as 'kernels:*'"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="tests that share a GPU (default: 1)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing that would take longer")
    parser.add_argument("--again", action="store_true", help="run what has passed as well")
    parser.add_argument("--list", action="store_true", help="name the parts and whether they are done, and end")
    arguments = parser.parse_args()
    machine, checks, end = environment(), arguments.results / "checks.jsonl", time.monotonic() + 60 * arguments.minutes
    wanted = [
        part
        for part in parts(arguments.results, arguments.timing_cache)
        if any(fnmatch.fnmatchcase(part.name, pattern) for pattern in arguments.only)
    ]
    before = {} if arguments.again else passed_before(checks, wanted, machine.get("gpu"))
    if arguments.list:
        for part in wanted:
            state = f"passed at {before[part.name]}" if part.name in before else f"to do, {part.minutes:g} min at most"
            print(f"{part.name:40s} {state}")
        return 0
    records: list[dict[str, Any]] = []
    lock = threading.Lock()

    def write_record(record: dict[str, Any]) -> None:
        with lock:
            records.append(record)
            append_record(checks, {**record, **machine})
            print(table([record], []), flush=True)

    left = run_all(
        [part for part in wanted if part.name not in before], visible_gpus(), end, write_record, arguments.at_once
    )
    print(f"\n{table(records, left)}", flush=True)
    totals = {name: sum(record.get(name, 0) for record in records) for name in ("passed", "failed", "skipped")}
    print(", ".join(f"{count} {name}" for name, count in totals.items()), flush=True)
    return 1 if left or any(record["status"] for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
