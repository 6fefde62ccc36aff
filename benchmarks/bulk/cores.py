# SPDX-License-Identifier: Apache-2.0
"""`padfree embed` beside `padfree run` and sentence-transformers, from texts to vectors, without a GPU.

    python -m benchmarks.bulk.cores --minilm all-MiniLM-L6-v2 --json benchmarks/results/cpu/embed.jsonl

Texts are paragraphs of Python's own reference. Every command runs in a process of its own, imports and all, in turns: a
round has each of them once. `cpu_s` are seconds of all cores, of every process that the command started: they tell
more than `wall_s` where other work shares the machine. Each figure is the least of the rounds. `of_workers` is what
each of embed's workers did of all tokens. `--peer-python` names a Python with torch and sentence-transformers.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from benchmarks.command import json_parser, keep

SHORTEST = 8  # letters; shorter lines are headings or numbers
PEER = """
import sys, numpy, sentence_transformers
folder, texts, output = sys.argv[1:]
model = sentence_transformers.SentenceTransformer(folder, device="cpu")
numpy.savez(output, model.encode(open(texts, encoding="utf-8").read().splitlines()))
"""


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds on the clock, and seconds of all cores."""

    wall_s: float
    cpu_s: float


def paragraphs(count: int) -> list[str]:
    """`count` paragraphs of Python's reference, each on one line, in a meaningless order.

    Raises:
        SystemExit: the reference has fewer.
    """
    found = [" ".join(part.split()) for text in topics.values() for part in re.split(r"\n\s*\n", text)]
    found = sorted({text for text in found if len(text) > SHORTEST})
    if count > len(found):
        raise SystemExit(f"--texts {count}: Python's reference has {len(found)} paragraphs; pass that or less")
    random.Random(0).shuffle(found)
    return found[:count]


def cost_of(command: Sequence[str]) -> Cost:
    """Runs a command to its end; it has to succeed."""
    before, start = _children_s(), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    return Cost(time.perf_counter() - start, _children_s() - before)


def _children_s() -> float:
    """Seconds of all cores, of processes that have ended and those that they waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def commands(minilm: Path, model: Path, texts: Path, folder: Path, peer: str | None) -> dict[str, list[str]]:
    """The commands to measure, by name."""
    padfree = [sys.executable, "-m", "padfree"]
    work = [str(model), "--quiet", "--input", str(texts), "-o"]
    found = {
        "run": [*padfree, "run", *work, str(folder / "vectors.npz")],
        "run to JSON lines": [*padfree, "run", *work, str(folder / "vectors.jsonl")],
        "embed": [*padfree, "embed", *work, str(folder / "one")],
        "embed --workers 2": [*padfree, "embed", *work, str(folder / "two"), "--workers", "2"],
    }
    if peer is not None:
        found["sentence-transformers"] = [peer, "-c", PEER, str(minilm), str(texts), str(folder / "peer.npz")]
    return found


def of_workers(output: Path) -> list[float]:
    """The share of each worker in all tokens of a job."""
    workers: list[Mapping[str, Any]] = json.loads((output / "_report.json").read_text("utf-8"))["workers"]
    tokens = [worker["tokens"] for worker in workers]
    return [round(count / sum(tokens), 3) for count in tokens]


def main() -> None:
    """Measures, prints and records."""
    parser = json_parser(__doc__, "one line per command")
    parser.add_argument("--minilm", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=2000, help="how many (2000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", metavar="PYTHON", help="measure sentence-transformers with it, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="padfree-cores-") as name:
        folder = Path(name)
        texts, model = folder / "texts.txt", folder / "minilm.onnx"
        texts.write_text("".join(f"{text}\n" for text in paragraphs(arguments.texts)), encoding="utf-8")
        optimize = [sys.executable, "-m", "padfree", "optimize", str(arguments.minilm), "-o", str(model), "--quiet"]
        subprocess.run(optimize, check=True, stdout=subprocess.DEVNULL)
        costs: dict[str, list[Cost]] = {}
        shares: dict[str, list[float]] = {}
        for number in range(arguments.rounds):
            results = folder / str(number)  # a folder of its own: a job that is done already would do nothing
            results.mkdir()
            for case, command in commands(arguments.minilm, model, texts, results, arguments.peer_python).items():
                costs.setdefault(case, []).append(cost_of(command))
                print(number, case, costs[case][-1], flush=True)
            shares = {"embed": of_workers(results / "one"), "embed --workers 2": of_workers(results / "two")}
    for case, rounds in costs.items():
        result = {
            "case": f"{case}, MiniLM, {arguments.texts} texts",
            "wall_s": round(min(cost.wall_s for cost in rounds), 2),
            "cpu_s": round(min(cost.cpu_s for cost in rounds), 2),
            "rounds": len(rounds),
            **({"of_workers": shares[case]} if case in shares else {}),
            "machine_cores": len(os.sched_getaffinity(0)),
        }
        print(result)
        keep(arguments.json, result)


if __name__ == "__main__":
    main()
