# SPDX-License-Identifier: Apache-2.0
"""Engines that `padfree.Model` builds on a machine with a GPU, kept so that the next start needs no build.

An engine is found again by what it was made of (the model's files by their content, the options), by what built it
(padfree, its plugin library, TensorRT), and by the GPU. The folder is the user's cache: it may be removed at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import padfree
from padfree.onnx_tools.files import locations
from padfree.runtime import SessionError, file_digest, open_plan
from padfree.runtime.gpu import Device, import_tensorrt, plugin_library

from .engine.build import build_engine, check_machine, open_gpu
from .engine.progress import StageProgress
from .errors import BuildError
from .folders.folder import read_folder
from .folders.head import HeadOptions
from .folders.source import opened
from .gpu_files import no_gpu

_log = logging.getLogger("padfree")

AUTO, TENSORRT, ONNXRUNTIME = "auto", "tensorrt", "onnxruntime"
BACKENDS = (AUTO, TENSORRT, ONNXRUNTIME)
OPERATORS = (plugin_library.PROBE_PLUGIN,)
"""Every packed engine has it: where the library lacks its code for the GPU, no engine can be built."""
_PLAN = "model.plan"
_SMALL_BYTES = 1 << 25
"""All smaller files of a folder are part of its digest: settings, vocabularies, small weights."""
_PROSE = (".md", ".png", ".jpg", ".gitattributes", ".lock")
_KEY_LETTERS = 20


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is made.

    Attributes:
        head: pooling, normalisation and outputs.
        precision: None: fp16, or bf16 where fp16 cannot hold the numbers; of rewritten files theirs.
        verify: whether the rewritten model and the engine are compared with the original.
    """

    head: HeadOptions
    precision: str | None = None
    verify: bool = True


def runs_on_gpu(backend: str, device: int, model: object) -> bool:
    """Whether a model is to run as an engine: where that was asked for, or where this machine can build one.

    Where there is a GPU and no engine can be built, the log says what is missing.

    Raises:
        BuildError: an unknown backend, or engines were asked for and cannot be built here.
    """
    if backend not in BACKENDS:
        raise BuildError(f"backend is {backend!r}, allowed: {', '.join(BACKENDS)}; leave it out for {AUTO}")
    if backend == ONNXRUNTIME:
        return False
    try:
        check_machine(device, operators=OPERATORS)
    except BuildError as error:
        if backend == TENSORRT:
            raise
        if not no_gpu():
            _log.warning("%s: runs on the CPU although there is a GPU: %s", model, error)
        return False
    return True


def default_folder() -> Path:
    """Where engines are kept: in XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "padfree" / "engines"


@contextlib.contextmanager
def kept_engine(
    model: Path,
    options: EngineOptions,
    *,
    device: int,
    folder: Path | None,
    progress: StageProgress | None = None,
) -> Iterator[Path]:
    """The plan of a model's engine on this machine: the one that is kept, or a new one.

    Where several processes want the same engine, one builds it and the others wait. Where the folder cannot be
    written, the engine exists until the context ends.

    Args:
        model: a model's folder, or an exported or rewritten .onnx file.
        options: how it is made.
        device: CUDA device.
        folder: where engines are kept; None: `default_folder`.
        progress: shows the stages of a build.

    Raises:
        BuildError, RewriteError, SessionError: as `build_engine`.
    """
    gpu = open_gpu(device)
    name = model.resolve().name if model.is_dir() else model.stem
    engine_folder = (folder or default_folder()) / f"{name}-{_key(model, options, gpu)[:_KEY_LETTERS]}"
    try:
        engine_folder.mkdir(parents=True, exist_ok=True)
        lock = (engine_folder / ".lock").open("w")
    except OSError as error:
        with tempfile.TemporaryDirectory(prefix="padfree-engine-") as scratch:
            _log.warning("%s: building an engine for %s, which cannot be kept: %s", model, gpu.name, error)
            _build(model, Path(scratch) / _PLAN, options, device, progress)
            yield Path(scratch) / _PLAN
        return
    plan = engine_folder / _PLAN
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_whole(plan):
            _log.warning("%s: building an engine for %s, once; it is kept in %s", model, gpu.name, engine_folder)
            _build(model, plan, options, device, progress)
    yield plan


def _build(model: Path, plan: Path, options: EngineOptions, device: int, progress: StageProgress | None) -> None:
    with (
        opened(model, options.head, say=_log.info, lazily=True) as source,
        progress or contextlib.nullcontext(),
    ):
        build_engine(
            source.unmade or source.path,
            plan,
            precision=options.precision,
            verify=options.verify,
            device=device,
            progress=progress,
            origin=[str(model)],
            say=_log.info,
        )


def _is_whole(plan: Path) -> bool:
    """Whether a kept engine exists and is as it was written."""
    if not plan.exists():
        return False
    try:
        open_plan(plan)
    except SessionError as error:
        _log.warning("%s; it is built anew", error)
        return False
    return True


def _key(model: Path, options: EngineOptions, gpu: Device) -> str:
    """A digest that no other engine has."""
    library = plugin_library.find()
    status = library.stat()
    facts = {
        "model": _content(model),
        "options": asdict(options),
        "padfree": padfree.__version__,
        "library": [str(library), status.st_size, status.st_mtime_ns],
        "tensorrt": import_tensorrt().__version__,
        "gpu": [gpu.name, gpu.compute_capability],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _content(model: Path) -> Mapping[str, str]:
    """The digests of the files that a model is made of, by their names."""
    if not model.is_dir():
        return {path.name: file_digest(path) for path in _with_data(model)}
    folder = read_folder(model)
    weights = folder.weights if folder.onnx.choice is None else _with_data(folder.onnx.choice)
    files = sorted(path for path in model.rglob("*") if path.is_file() and not _is_prose(path.relative_to(model)))
    return {
        str(path.relative_to(model)): file_digest(path)
        for path in files
        if path.stat().st_size < _SMALL_BYTES or not weights or path in weights
    }


def _with_data(file: Path) -> list[Path]:
    """An .onnx file, and those that hold its weights."""
    return [path for path in (file, *(file.parent / name for name in locations(file))) if path.is_file()]


def _is_prose(path: Path) -> bool:
    return path.suffix.lower() in _PROSE or any(part.startswith(".") for part in path.parts)
