# SPDX-License-Identifier: Apache-2.0
"""How long `padfree build FOLDER` takes, by phase, for folders with random weights at the shapes of known models.

    python -m benchmarks.engine.folder_time minilm bge-m3 --json benchmarks/results/h200/folder_time.jsonl

The whole command as a user runs it, without a timing cache and again with the one that it leaves: imports, export by
torch, rewriting and its checks, TensorRT, the engine's check, writing; and the most memory that a process took. With
--cpu it is `padfree optimize`, in fp16, which needs no GPU.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from padfree.builder.bench.environment import append_record, environment

from benchmarks.command import json_parser

GOALS_S: Mapping[str, int] = MappingProxyType({"minilm": 15, "bge-m3": 35, "qwen3-0.6b": 40})
"""Goals in seconds on 16 cores, with a filled timing cache or without."""
ROW = re.compile(r"^│ (?P<phase>.+?) +│ +(?P<seconds>[0-9.]+) │$")
"""A line of the table that --verbose prints."""


@dataclass(frozen=True)
class Shape:
    """A model of transformers: its class, and how its configuration differs from the default."""

    model: str
    config: Mapping[str, Any]
    pooling: str


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "minilm": Shape("BertModel", {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}, "mean"),
        "bge-m3": Shape(
            "XLMRobertaModel",
            {
                "vocab_size": 250002,
                "hidden_size": 1024,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
                "max_position_embeddings": 8194,
                "type_vocab_size": 1,
            },
            "cls",
        ),
        "qwen3-0.6b": Shape(
            "Qwen3Model",
            {
                "vocab_size": 151669,
                "hidden_size": 1024,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "intermediate_size": 3072,
            },
            "lasttoken",
        ),
    }
)


def write_folder(shape: Shape, folder: Path) -> None:
    """Writes a folder as save_pretrained does, in a process of its own, whose memory is freed when it ends."""
    code = (
        "import json, sys, torch, transformers\n"
        "name, config, folder = json.loads(sys.argv[1])\n"
        "torch.manual_seed(0)\n"
        "model = getattr(transformers, name)\n"
        "model(model.config_class(**config)).save_pretrained(folder)\n"
    )
    request = json.dumps([shape.model, dict(shape.config), str(folder)])
    subprocess.run([sys.executable, "-c", code, request], check=True, stderr=subprocess.DEVNULL)


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
    parser.add_argument("shapes", nargs="*", help=f"of {', '.join(SHAPES)} (default: {' and '.join(GOALS_S)})")
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
            cases = ("optimize",) if arguments.cpu else ("empty timing cache", "filled timing cache")
            for case in cases:
                seconds, phases, most_gb = run(optimize if arguments.cpu else build)
                goal = None if arguments.cpu else GOALS_S.get(name)
                print(f"{name}, {case}: {seconds:.1f} s" + (f" (goal {goal} s on 16 cores)" if goal else ""))
                print("    " + ", ".join(f"{phase} {spent:.1f}" for phase, spent in phases.items()))
                weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e9
                print(f"    most memory of a process: {most_gb:.2f} GB, weights {weights:.2f} GB", flush=True)
                if arguments.json:
                    record = {"case": f"{name}, {case}", "seconds": round(seconds, 1), "goal_s": goal}
                    record |= {"phases_s": phases, "most_gb": round(most_gb, 2), "weights_gb": round(weights, 2)}
                    append_record(arguments.json, {**record, "cores": os.cpu_count(), **environment()})


if __name__ == "__main__":
    main()
