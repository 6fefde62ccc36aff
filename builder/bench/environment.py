# SPDX-License-Identifier: Apache-2.0
"""What a measurement was made with (GPU, driver, versions, commit), and the JSON lines that keep it."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import importlib.util
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "onnxruntime",
    "onnx",
    "cuda-bindings",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
    "flash-attn-4",
    "nvidia-cutlass-dsl",
    "flashinfer-python",
    "triton",
    "flashdeberta",
    "disentangled-flash",
)


def environment() -> dict[str, str]:
    """One flat record; a package that is not installed is left out."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    record = {"date": today.isoformat(), "python": platform.python_version()}
    record |= gpu_and_driver() | installed_versions(PACKAGES)
    if importlib.util.find_spec("tensorrt"):
        record["tensorrt"] = importlib.import_module("tensorrt").__version__
    record["commit"] = commit()
    return record


def gpu_and_driver() -> dict[str, str]:
    """The first GPU and its driver; empty where there is none."""
    output = run("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0")
    return dict(zip(("gpu", "driver"), (part.strip() for part in output.split(",")), strict=True)) if output else {}


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed, by name; looked up singly, as reading all takes a second."""
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def commit() -> str:
    """The checkout's commit, from git or, where the tree travelled without it, from PADFREE_COMMIT."""
    root = Path(__file__).resolve().parents[2]
    here = run("git", "rev-parse", "--short=12", "HEAD", cwd=root) if (root / "plugins").is_dir() else ""
    return os.environ.get("PADFREE_COMMIT") or here or "unknown"


def run(*command: str, cwd: Path | None = None, timeout_s: float = 60.0) -> str:
    """A command's output, empty if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout_s, cwd=cwd)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Adds one JSON line to the file, which is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
