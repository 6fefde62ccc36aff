# SPDX-License-Identifier: Apache-2.0
"""Triton's backend "padfree" with fake_engine.cpp as its engine: libraries, repositories, expected answers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.runtime import SessionError
from padfree.runtime.gpu import plugin_library
from padfree.runtime.gpu.trt import import_tensorrt

ROOT = Path(__file__).resolve().parents[2]
BACKEND = "libtriton_padfree.so"
ENGINE = "libpadfree_engine.so"
MODULUS = 2039
"""The stand-in's results are taken modulo this."""
VOCABULARY = 930
MAX_POSITIONS = 64
PROFILE = {"min_tokens": 1, "opt_tokens": 128, "max_tokens": 512, "max_batch": 16, "max_seq_len": 64}

Array = npt.NDArray[Any]


def compile_library(compiler: str, sources: Sequence[Path], library: Path, *options: str) -> Path:
    """Compiles a shared library from sources that include headers below plugins/."""
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    command += ["-fvisibility=hidden", f"-I{ROOT / 'plugins'}", *options, *map(str, sources), "-o", str(library)]
    subprocess.run(command, check=True, timeout=300)
    return library


def together(sources: Sequence[Path], file: Path) -> Path:
    """Writes one file that includes all sources: most of the compile time goes into the standard library's headers."""
    file.write_text("".join(f'#include "{path}"\n' for path in sources), encoding="utf-8")
    return file


def backend_sources() -> list[Path]:
    """The sources of the backend."""
    folders = (ROOT / "plugins" / "triton_backend", ROOT / "plugins" / "tokenizer")
    return [
        *(file for folder in folders for file in sorted(folder.glob("*.cpp"))),
        ROOT / "plugins" / "triton_batching" / "json.cpp",
    ]


def driver_sources() -> list[Path]:
    """The sources of the backend and of what drives it in place of Triton's core (tests/support/backend/driver.cpp)."""
    return [*backend_sources(), *sorted((ROOT / "tests" / "support" / "backend").glob("*.cpp"))]


def backend_directory(compiler: str, folder: Path, *options: str) -> Path:
    """A folder for `--backend-directory`: the installed backend, or one compiled here, with the stand-in as its engine.

    Compiler `options`, such as those for sanitizers, require a library that is compiled here.
    """
    backend = folder / "padfree"
    backend.mkdir(parents=True)
    try:
        installed: Path | None = plugin_library.find().with_name(BACKEND)
    except SessionError:
        installed = None
    if installed is not None and installed.is_file() and not options:
        shutil.copy(installed, backend / BACKEND)
    else:
        compile_library(compiler, backend_sources(), backend / BACKEND, *options)
    compile_library(compiler, [Path(__file__).with_name("fake_engine.cpp")], backend / ENGINE, *options)
    return folder


def installed_backends(installed: Path, folder: Path) -> Path:
    """A folder for `--backend-directory`: the installed native backend with its engine, and Python's backend.

    Raises:
        SessionError: padfree's libraries are not installed.
    """
    libraries = plugin_library.find().parent
    backend = folder / "padfree"
    backend.mkdir(parents=True)
    for name in (BACKEND, ENGINE, "libpadfree_register.so", "libpadfree.so"):
        (backend / name).symlink_to((libraries / name).resolve(strict=True))
    (folder / "python").symlink_to(installed / "server" / "pytriton" / "tritonserver" / "backends" / "python")
    return folder


def tensorrt_environment() -> dict[str, str]:
    """The environment in which a server finds this process's TensorRT, which Python finds by itself."""
    import_tensorrt()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    libraries = [Path(line.split()[-1]).parent for line in maps if "libnvinfer.so" in line]
    before = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": f"{libraries[0]}:{before}".strip(":")}


def metadata(**changes: Any) -> dict[str, Any]:
    """A plan's metadata: inputs of ids and types, an output of two numbers per token, and one of three per sequence."""
    return {
        "format": 1,
        "version": "0.1.0",
        "interface": "packed",
        "precision": "fp32",
        "inputs": [
            {"name": "input_ids", "role": "tokens", "limit": VOCABULARY, "dtype": "int32"},
            {"name": "token_type_ids", "role": "tokens", "limit": 2, "dtype": "int32"},
            {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"},
        ],
        "outputs": [
            {"name": "hidden", "layout": "packed", "dtype": "float32", "shape": [None, 2]},
            {"name": "pooled", "layout": "per_sequence", "dtype": "float32", "shape": [None, 3]},
        ],
        "max_positions": MAX_POSITIONS,
        "plugins": {},
        "engine": {
            "tensorrt": "10.6.0",
            "gpu_name": "a stand-in",
            "compute_capability": "9.0",
            "profile": PROFILE,
            "plan_bytes": 0,
            "plan_sha256": "0" * 64,
            "plugin_layers": {},
        },
        **changes,
    }


def write_plan(plan: Path, content: str = "delay_us 100", **changes: Any) -> Path:
    """Writes a plan that fake_engine.cpp reads, and the metadata that belongs to it."""
    plan.write_text(content, encoding="utf-8")
    described = metadata(**changes)
    described["engine"] = {**described["engine"], **_sizes_of(content)}
    plan.with_name(f"{plan.name}.json").write_text(json.dumps(described), encoding="utf-8")
    return plan


def _sizes_of(content: str) -> dict[str, Any]:
    """What the metadata record about a plan's content."""
    return {"plan_bytes": len(content.encode()), "plan_sha256": hashlib.sha256(content.encode()).hexdigest()}


def write_model(
    repository: Path,
    name: str,
    *,
    config: str = "instance_group { kind: KIND_CPU }",
    plan: str = "",
    parameters: Mapping[str, str] | None = None,
    **changes: Any,
) -> Path:
    """Writes a model whose configuration the backend completes; `plan` is the text that fake_engine.cpp reads."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    write_plan(version / "model.plan", plan, **changes)
    lines = ['backend: "padfree"', config]
    for key, value in (parameters or {}).items():
        lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    (repository / name / "config.pbtxt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return repository / name


def pooled_answer(*tokens: Array, of_sequence: int = 0, width: int = 3) -> Array:
    """The stand-in's answer for one sequence: `tokens` are the values of each token input, [len] or [len, N]."""
    total = 1000 * of_sequence
    for number, values in enumerate(tokens, 1):
        rows = values.astype(np.int64).reshape(len(values), -1).sum(1)
        total += number * int((rows * np.arange(1, len(rows) + 1)).sum())
    return np.arange(total, total + width) % MODULUS


def hidden(*tokens: Array, width: int = 2) -> Array:
    """The stand-in's answer for every token: [len, width]."""
    length = len(tokens[0])
    total = 3 * length + 7 * np.arange(length)
    for number, values in enumerate(tokens, 1):
        total = total + number * values.astype(np.int64).reshape(length, -1).sum(1)
    return (total[:, None] + np.arange(width)) % MODULUS
