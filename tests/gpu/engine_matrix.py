# SPDX-License-Identifier: Apache-2.0
"""Every family and form as an engine, in both interfaces and all precisions, held against the original file.

    python -m tests.gpu.engine_matrix --results benchmarks/results/h200/engines.jsonl

The engines of a model are built, run and compared in a process of their own; `--workers` of those are under way at
once, on all GPUs.
The truth is the original in onnxruntime, in float32: on every sequence alone, and for left-padded and holed masks on
the same batch. What the results file has for this commit is not done again, so that the command may be stopped at any
time; `--again` repeats what failed. An engine that was right at an earlier commit is kept, and not built again, as long
as TensorRT's parser gets the same bytes for it, and the plugin library, the builder, the check, TensorRT and the kind
of GPU are the same. Exit code 1 if an engine fails or is left.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from padfree.builder.bench.environment import append_record, commit, environment

from benchmarks.evidence import LIBRARY, digest, under
from tests.support.threads import ONE_THREAD

from .engine_cases import Entry, entries, prepare

MARK = "RESULT "
JUDGES = ("builder/engine", "tests/gpu/engine_check.py", "tests/support/exports.py", *LIBRARY)
"""What an engine and its verdict depend on, apart from what it is made of."""
SECONDS_FOR_ONE = 90.0
ROOT = Path(__file__).resolve().parents[2]


Proved = Mapping[str, Sequence[str]]
"""Digests of what right engines were made of, by the engine's key."""


def together(group: Sequence[Entry], folder: Path, how: Sequence[str], proved: Proved) -> Iterator[dict[str, Any]]:
    """Builds and checks engines of one model in a process of its own, and gives each result as it comes.

    A crash is a result like any other. Engines that come after one that ended the process have no result.
    """
    listed = json.dumps([{**dataclasses.asdict(entry), "proved": proved.get(entry.key, ())} for entry in group])
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu.engine_check", str(folder), listed, *how]
    limit = SECONDS_FOR_ONE * len(group)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment(group[0])
        ) as child,
    ):
        assert child.stdout is not None
        end = threading.Timer(limit, child.kill)
        end.start()
        waiting = list(group)
        for line in child.stdout:
            if line.startswith(MARK):
                yield {**dataclasses.asdict(waiting.pop(0)), **json.loads(line.removeprefix(MARK))}
        is_late = end.finished.is_set()
        end.cancel()
        if waiting:
            errors.seek(0)
            tail = (
                f"not done after {limit:.0f} s" if is_late else (errors.read().strip().splitlines() or ["no word"])[-1]
            )
            yield {**dataclasses.asdict(waiting[0]), "status": "died", "reason": tail[:300]}


def _environment(entry: Entry) -> dict[str, str]:
    """One core and one GPU for each process; the same engine always runs on the same GPU."""
    gpus = _gpu_count()
    chosen = {"CUDA_VISIBLE_DEVICES": str(hash(entry.key) % gpus)} if gpus > 1 else {}
    return {**os.environ, **ONE_THREAD, **chosen}


@functools.cache
def _gpu_count() -> int:
    if importlib.util.find_spec("cuda") is None:
        return 0
    from padfree.runtime.gpu.cuda import device_count

    return device_count()


def _groups(waiting: Sequence[Entry]) -> list[list[Entry]]:
    """Groups of engines of one model, which share TensorRT's builder."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in waiting:
        found.setdefault((entry.source, entry.name), []).append(entry)
    return list(found.values())


def read(results: Path) -> list[dict[str, Any]]:
    """The records of a file; none if there is no such file."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def known_statuses(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The statuses recorded for this commit: an engine's key -> its status."""
    return {Entry.of(item).key: item["status"] for item in records if item["commit"] == commit()}


def proved_by(records: Sequence[Mapping[str, Any]], here: Mapping[str, str]) -> dict[str, list[str]]:
    """What right engines were made of, from records with the same judges, GPU and TensorRT as here."""
    found: dict[str, list[str]] = {}
    for item in records:
        same = all(item.get(name) == here.get(name) for name in ("judges", "gpu", "tensorrt"))
        if same and item["status"] == "passed" and item.get("made_of"):
            found.setdefault(Entry.of(item).key, []).append(item["made_of"])
    return found


def summary(statuses: Mapping[str, str]) -> list[str]:
    """A line for each source, with the number of engines by status."""
    rows: dict[str, Counter[str]] = {}
    for key, status in statuses.items():
        rows.setdefault(key.split("/")[0], Counter())[status] += 1
    return [
        f"{name:12s} " + ", ".join(f"{count} {status}" for status, count in sorted(row.items()))
        for name, row in rows.items()
    ]


def main() -> int:
    """Runs what is left, prints a line for each engine, and the counts at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/local/engines.jsonl")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/padfree-engines"), help="for models and plans")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of SOURCE/NAME/INTERFACE/PRECISION")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing after so long")
    parser.add_argument("--onnxruntime", action="store_true", help="check the files in onnxruntime: no GPU, no engines")
    parser.add_argument("--again", action="store_true", help="repeat what failed")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    prepare(arguments.folder, arguments.only)
    records, machine = read(arguments.results), {"judges": digest(under(JUDGES)), **environment()}
    statuses, proved = known_statuses(records), proved_by(records, machine)
    wanted = [
        item for item in entries(arguments.folder) if any(fnmatch.fnmatchcase(item.key, at) for at in arguments.only)
    ]
    right = ("passed", "refused", "kept")
    done = right if arguments.again else (*right, "failed", "died")
    waiting = [item for item in wanted if statuses.get(item.key) not in done]
    how = ("onnxruntime",) if arguments.onnxruntime else ()
    end = time.monotonic() + arguments.seconds
    print(f"{len(wanted)} engines, {len(wanted) - len(waiting)} of them done; {_gpu_count()} GPUs", flush=True)

    def run(group: Sequence[Entry]) -> None:
        for result in together(group, arguments.folder, how, proved) if time.monotonic() < end else ():
            key = Entry.of(result).key
            statuses[key] = result["status"]
            append_record(arguments.results, {**result, **machine})
            print(f"{result['status']:8s} {key:64s} {result.get('worst', '')} {result.get('reason', '')}", flush=True)

    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(run, _groups(waiting)))
    keys = {item.key for item in wanted}
    print("\n".join(summary({key: statuses.get(key, "left") for key in sorted(keys)})), flush=True)
    count = Counter(statuses.get(key, "left") for key in keys)
    passed = sum(count[status] for status in right)
    print(f"{passed} passed, {count['failed'] + count['died']} failed, {count['left']} left")
    return 0 if passed == len(keys) else 1


if __name__ == "__main__":
    sys.exit(main())
