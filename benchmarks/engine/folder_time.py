# SPDX-License-Identifier: Apache-2.0
"""How long `padfree build FOLDER` takes, by phase, for folders with random weights at the shapes of known models.

    python -m benchmarks.engine.folder_time minilm bge-m3 --json benchmarks/results/h200/folder_time.jsonl
    python -m benchmarks.engine.folder_time qwen3-0.6b --once     # with an empty timing cache alone

The whole command as a user runs it, without a timing cache and again with the one that it leaves: imports, the graph,
rewriting and its checks, TensorRT, the engine's check, writing; and the most memory that a process took. With --cpu it
is `padfree optimize`, in fp16, which needs no GPU. The folders are those of benchmarks.engine.folder_memory, made
without torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.command import json_parser, keep

from .folder_memory import SHAPES, write_folder

GOALS_S: Mapping[str, int] = MappingProxyType({"minilm": 15, "bge-m3": 35, "qwen3-0.6b": 40, "embedding-gemma": 45})
"""Goals in seconds on 16 cores, with a filled timing cache or without."""
ROW = re.compile(r"^│ (?P<phase>.+?) +│ +(?P<seconds>[0-9.]+) │$")
"""A line of the table that --verbose prints."""


def run(command: Sequence[str]) -> tuple[float, dict[str, float], float]:
    """Seconds of one `padfree` command and of its phases, and gigabytes of the process that took the most."""
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "padfree.builder.cli", *command, "--verbose"], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        lines = child.stdout.read().splitlines()
        _, status, used = os.wait4(child.pid, 0)  # those of this command and of the processes that it waited for
        child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    if child.returncode:
        raise SystemExit(f"padfree {' '.join(command)} ended with code {child.returncode}")
    begin = next(at for at, line in enumerate(lines) if line.startswith("where the time went"))
    end = next(at for at, line in enumerate(lines[begin:], begin) if line.startswith("└"))
    found = (ROW.match(line) for line in lines[begin:end])
    phases = {match["phase"]: float(match["seconds"]) for match in found if match}
    return seconds, phases, used.ru_maxrss * 1024 / 1e9


def main() -> None:
    """Builds, prints, records."""
    parser = json_parser(__doc__, "one line per command")
    parser.add_argument("shapes", nargs="*", help=f"of {', '.join(SHAPES)} (default: those with a goal)")
    parser.add_argument("--once", action="store_true", help="no second build, which finds a filled timing cache")
    parser.add_argument("--cpu", action="store_true", help="optimize instead of build")
    arguments = parser.parse_args()
    for name in arguments.shapes:  # argparse of Python 3.11 would also compare an empty list with `choices`
        if name not in SHAPES:
            parser.error(f"no shape is called '{name}'; choose from {', '.join(SHAPES)}")
    for name in arguments.shapes or GOALS_S:
        with tempfile.TemporaryDirectory(prefix="padfree-bench-") as scratch:
            folder, cache = Path(scratch) / name, Path(scratch) / "timing.cache"
            write_folder(SHAPES[name], folder)
            items = ["--pooling", SHAPES[name].pooling, "--normalize"]
            build = ["build", str(folder), "-o", f"{folder}.plan", *items, "--timing-cache", str(cache)]
            optimize = ["optimize", str(folder), "-o", f"{folder}.onnx", *items, "--precision", "fp16"]
            builds = ("empty timing cache", "filled timing cache")[: 1 if arguments.once else 2]
            for case in ("optimize",) if arguments.cpu else builds:
                seconds, phases, most_gb = run(optimize if arguments.cpu else build)
                goal = None if arguments.cpu else GOALS_S.get(name)
                print(f"{name}, {case}: {seconds:.1f} s" + (f" (goal {goal} s on 16 cores)" if goal else ""))
                print("    " + ", ".join(f"{phase} {spent:.1f}" for phase, spent in phases.items()))
                weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e9
                print(f"    most memory of a process: {most_gb:.2f} GB, weights {weights:.2f} GB", flush=True)
                record = {"case": f"{name}, {case}", "seconds": round(seconds, 1), "goal_s": goal}
                record |= {"phases_s": phases, "most_gb": round(most_gb, 2), "weights_gb": round(weights, 2)}
                keep(arguments.json, {**record, "cores": os.cpu_count()})


if __name__ == "__main__":
    main()
