# SPDX-License-Identifier: Apache-2.0
"""Host memory of `padfree optimize FOLDER` and `padfree build FOLDER`, in parts of the safetensors file.

    python -m benchmarks.engine.folder_memory bge-m3 qwen3-0.6b --json benchmarks/results/local/folder_memory.jsonl
    python -m benchmarks.engine.folder_memory qwen3-4b --layers 8 --verify none
    python -m benchmarks.engine.folder_memory qwen3-0.6b --build     # on a machine with a GPU
    python -m benchmarks.engine.folder_memory qwen3-8b --layers 4 --prepare     # a build without TensorRT
    python -m benchmarks.engine.folder_memory qwen3-0.6b --prepare --cores 16   # as many threads as on 16 cores

Folders have random weights at the shapes of known models, in the type that those have. All processes of the command are
sampled twenty times per second: `held` is the most memory that was theirs alone, files in memory included, which a
machine has to have; `mapped` the most that the parts of mapped files took beside it, which the system takes back where
memory is short. Both are without what the command's imports take (`idle`). `held_gb_after` has the most held after each
line that the command told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from padfree.contract.machine import cores

from benchmarks.command import json_parser, keep
from benchmarks.definitions import CONFIGS, shapes_of
from tests.support.cores import environment_with
from tests.support.safetensors_files import write_drawn

EVERY_S = 0.05
_IMPORTS = "padfree.onnx_tools.rewrite, padfree.builder.folders.source, padfree.builder.engine.build"
IDLE = ("-c", f"import time, {_IMPORTS}; time.sleep(1)")
"""A command that imports as much as a real one has before it reads a model."""
PREPARE = """
import sys
from pathlib import Path
from padfree.builder.engine.options import BuildOptions
from padfree.builder.engine.preparation_process import preparing
from padfree.builder.folders.head import HeadOptions
from padfree.builder.folders.source import opened
from padfree.runtime.gpu import Device
folder, pooling, precision, verify = sys.argv[1:]
options = BuildOptions.of_keywords(precision=precision, verify={"none": False, "usual": True}.get(verify, verify))
with opened(folder, HeadOptions((pooling,), True), lazily=True) as source:
    with preparing(source.unmade, options, lambda: Device(0, "NVIDIA H200", 9, 0)) as wait:
        prepared = wait()
        print("handing the model over", file=sys.stderr, flush=True)
        paths = [] if prepared.file is None else [path for path in prepared.file.parent.iterdir() if path.is_file()]
        copies = [path.read_bytes() for path in paths] if paths else [bytes(prepared.content)]
        prepared.drop()
        print("building", file=sys.stderr, flush=True)
        if prepared.reference is not None:
            prepared.reference()
"""
"""A build without TensorRT, for which a copy of the weights stands: the other process makes the model, as for an H200,
and the answers expected of an engine."""
_BLOCK = 1 << 22
_BYTES = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Shape:
    """A model's sizes, its weights' type, and how its rows are pooled."""

    config: Mapping[str, Any]
    dtype: str
    pooling: str
    there: frozenset[str] = frozenset()


def _qwen3(width: int, inner: int, layers: int, heads: int) -> Shape:
    config = {
        "model_type": "qwen3", "vocab_size": 151_669, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": inner,
    }  # fmt: skip
    return Shape(config, "bf16", "lasttoken")


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "minilm": Shape(
            {
                "model_type": "bert", "vocab_size": 30_522, "hidden_size": 384, "num_hidden_layers": 6,
                "num_attention_heads": 12, "intermediate_size": 1536,
            },
            "fp32",
            "mean",
        ),
        "bge-m3": Shape(
            {
                "model_type": "xlm-roberta", "vocab_size": 250_002, "hidden_size": 1024, "num_hidden_layers": 24,
                "num_attention_heads": 16, "intermediate_size": 4096, "max_position_embeddings": 8194,
                "type_vocab_size": 1,
            },
            "fp32",
            "cls",
        ),
        "gte-base": Shape(CONFIGS["gte-base"], "fp16", "cls", frozenset({"attention.qkv_proj.weight"})),
        "qwen3-0.6b": Shape(CONFIGS["qwen3-0.6b"], "bf16", "lasttoken"),
        "embedding-gemma": Shape(CONFIGS["embedding-gemma"], "bf16", "mean"),
        "qwen3-4b": _qwen3(2560, 9728, 36, 32),
        "qwen3-8b": _qwen3(4096, 12_288, 36, 32),
    }
)  # fmt: skip


def draw(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """A tensor's numbers: one block of them, repeated with a different factor each time."""
    del name
    count = int(np.prod(shape, dtype=np.int64))
    block = np.random.default_rng(0).standard_normal(min(count, _BLOCK), np.float32) * np.float32(0.02)
    result = np.empty(count, np.float32)
    for at, begin in enumerate(range(0, count, _BLOCK)):
        part = result[begin : begin + _BLOCK]
        np.multiply(block[: part.size], np.float32(1 + 0.01 * (at % 7)), out=part)
    if len(shape) == 1:
        result += 1
    return result.reshape(shape)


def write_folder(shape: Shape, folder: Path) -> int:
    """Writes a model's folder in shards of 2 GB at most, like those on hubs; returns their bytes."""
    shapes, dtype = dict(shapes_of(shape.config, shape.there)), _BYTES[shape.dtype]
    parts: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, dims in shapes.items():
        size += int(np.prod(dims)) * dtype.itemsize
        if size > 2e9 and parts[-1]:
            parts.append({})
            size = int(np.prod(dims)) * dtype.itemsize
        parts[-1][name] = dims
    names = [f"model-{at:05d}-of-{len(parts):05d}.safetensors" for at in range(1, len(parts) + 1)]
    names = ["model.safetensors"] if len(parts) == 1 else names
    for name, part in zip(names, parts, strict=True):
        write_drawn(folder / name, part, dtype, draw)
    if len(parts) > 1:
        files = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}), "utf-8")
    (folder / "config.json").write_text(json.dumps(dict(shape.config)), "utf-8")
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


class Watch:
    """Looks at a process and its descendants until it is stopped."""

    def __init__(self, pid: int) -> None:
        self.mapped = 0
        self.told = ""
        self.held_after = {self.told: 0}
        self._pid, self._ends = pid, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def held(self) -> int:
        """The most memory of their own."""
        return max(self.held_after.values())

    def _look(self) -> None:
        while not self._ends.wait(EVERY_S):
            pids = list(family(self._pid))
            held, mapped = (sum(sizes) for sizes in zip(*map(resident, pids), strict=True)) if pids else (0, 0)
            held += files_in_memory(pids)
            self.held_after[self.told] = max(self.held_after.get(self.told, 0), held)
            self.mapped = max(self.mapped, mapped)


def family(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def resident(pid: int) -> tuple[int, int]:
    """Bytes of a process's own memory, and of mapped files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
    return sizes.get("RssAnon", 0), sizes.get("RssFile", 0)


def files_in_memory(pids: Sequence[int]) -> int:
    """Bytes of unnamed files that these processes have in memory, each counted once."""
    sizes: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(link.readlink()).startswith("/memfd:"):
                        status = link.stat()
                        sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def watch_command(arguments: Sequence[str], cores: int | None = None) -> tuple[Watch, float]:
    """Watches a Python command, which may be made to believe in other `cores`: the most memory, and seconds."""
    start = time.monotonic()
    command = [sys.executable, *arguments]
    environment = None if cores is None else environment_with(cores)
    with (
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        ) as child,
        Watch(child.pid) as watch,
    ):
        assert child.stderr is not None
        for line in child.stderr:
            watch.told = line.strip()
            print(line, end="", file=sys.stderr, flush=True)
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with code {child.returncode}")
    return watch, time.monotonic() - start


def measure(name: str, shape: Shape, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures one folder."""
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as scratch:
        folder = Path(scratch) / name
        size = write_folder(shape, folder)
        command = "build" if arguments.build else "optimize"
        output = f"{folder}.plan" if arguments.build else f"{folder}.onnx"
        more = ["--precision", arguments.precision or ("fp16" if shape.dtype != "bf16" else "bf16")]
        more += {"none": ["--no-verify"], "usual": []}.get(arguments.verify, ["--verify", arguments.verify])
        idle = watch_command(IDLE)[0]
        words = ["-m", "padfree.builder.cli", command, str(folder), "-o", output, "--pooling", shape.pooling]
        words += ["--normalize", *more, *(["--quiet"] if command == "optimize" else [])]
        if arguments.prepare:
            command, words = "prepare", ["-c", PREPARE, str(folder), shape.pooling, more[1], arguments.verify]
        watch, seconds = watch_command(words, arguments.cores)
    more += [] if arguments.cores is None else [f"--cores {arguments.cores}"]
    return {
        "case": f"{name}, {command} {' '.join(more)}",
        "cores": arguments.cores or cores(),
        "layers": shape.config["num_hidden_layers"],
        "file_gb": round(size / 1e9, 3),
        "seconds": round(seconds, 1),
        "held_gb": round(watch.held / 1e9, 3),
        "mapped_gb": round(watch.mapped / 1e9, 3),
        "idle_gb": round(idle.held / 1e9, 3),
        "held_over_file": round((watch.held - idle.held) / size, 2),
        "mapped_over_file": round((watch.mapped - idle.mapped) / size, 2),
        "held_gb_after": {line: round(held / 1e9, 3) for line, held in watch.held_after.items()},
    }


def main() -> None:
    """Runs, prints and records."""
    parser = json_parser(__doc__, "one line per folder")
    parser.add_argument("shapes", nargs="+", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--precision", help="default: bf16 for weights in bf16, else fp16")
    parser.add_argument("--verify", choices=("usual", "whole", "none"), default="usual")
    parser.add_argument("--cores", type=int, help="start as many threads as on a machine with so many cores")
    parser.add_argument("--build", action="store_true", help="`padfree build`, which needs a GPU")
    parser.add_argument("--prepare", action="store_true", help="a build without TensorRT, which needs no GPU")
    arguments = parser.parse_args()
    for name in arguments.shapes:
        if name not in SHAPES:
            parser.error(f"no shape is called '{name}'; choose from {', '.join(SHAPES)}")
    for name in arguments.shapes:
        shape = SHAPES[name]
        if arguments.layers:
            shape = replace(shape, config={**shape.config, "num_hidden_layers": arguments.layers})
        record = measure(name, shape, arguments)
        print(json.dumps(record), flush=True)
        keep(arguments.json, record)


if __name__ == "__main__":
    main()
