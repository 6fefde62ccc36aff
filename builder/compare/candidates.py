# SPDX-License-Identifier: Apache-2.0
"""From files and runner names to runners: what is compared with the original."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnx import ModelProto
from padfree.contract.names import is_onnx
from padfree.onnx_tools import VerificationError, load_model, rewrite, save_model
from padfree.onnx_tools.files import Model, Storage, is_rewritten, open_model, open_session
from padfree.onnx_tools.importing import runnable
from padfree.onnx_tools.precision import with_rounding
from padfree.runtime import Metadata, parse_metadata, read_sidecar
from polygraphy.backend.onnxrt import OnnxrtRunner

from ..engine.build import build_engine
from ..engine.preparation import metadata_of
from ..errors import BuildError
from ..folders.location import check_no_part
from ..peers.padded_engine import build_padded_engine
from .batches import ComparedBatch
from .insides import CpuInside, Inside, inside_engine
from .original import Original, check_original
from .runners import PaddedRunner, SessionRunner
from .subject import REWRITTEN, Candidate, Subject
from .tolerances import TOLERANCES, Tolerance
from .torch_model import torch_runner

REFERENCE = "onnxrt"
RUNNERS = (REFERENCE, "onnxrt-packed", "trt", "trt-padded", "torch")


@dataclass(frozen=True)
class Settings:
    """How candidates are run.

    Attributes:
        folder: for scratch files; `compare` and `emit` set it.
        precision: that of the model that the original is rewritten to if no file is given.
        absolute_tolerance, relative_tolerance: None for those of each model's precision.
        mask: the original's input that is its padding mask.
    """

    folder: Path = Path()
    precision: str = "fp32"
    absolute_tolerance: float | None = None
    relative_tolerance: float | None = None
    device: int = 0
    torch_model: Path | None = None
    mask: str | None = None

    def scratch(self, name: str) -> Path:
        """A new file's path."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / name

    def tolerance(self, precision: str) -> Tolerance:
        """What may differ in a model of this precision."""
        default, absolute, relative = TOLERANCES[precision], self.absolute_tolerance, self.relative_tolerance
        return Tolerance(
            default.absolute if absolute is None else absolute,
            default.relative if relative is None else relative,
            default.cosine if absolute is None and relative is None else None,
        )


def open_candidates(original: Path, files: Sequence[Path], settings: Settings, *, interface: str) -> list[Candidate]:
    """The files with their metadata; without files, what the original is rewritten to.

    Raises:
        BuildError, RewriteError, SessionError: a file cannot be read, or the original has been rewritten or cannot be.
    """
    if not files:
        check_original(original, open_model(original, Storage.MAP).proto)
        path = settings.folder / REWRITTEN
        options: dict[str, Any] = {"interface": interface, "precision": settings.precision, "mask": settings.mask}
        try:
            result = rewrite(original, **options)  # finds what half precision cannot hold, and ids that are looked for
        except VerificationError:
            if settings.precision != "fp32":
                raise
            result = rewrite(original, **options, verify=False)  # what differs is what the comparison is to tell
        save_model(result.model, path)
        return [Candidate(path, "the rewritten model", _metadata(path))]
    for path in files:
        check_no_part(path)
        if path.is_dir():
            raise BuildError(
                f"{path}: is a folder, which is compared as the first model alone; name a file made from it"
            )
    names = [path.name for path in files]
    labels = [path.name if names.count(path.name) == 1 else str(path) for path in files]
    if len(set(labels)) < len(labels):
        raise BuildError(f"a file is given twice: {', '.join(labels)}; name every file once")
    return [Candidate(path, label, _metadata(path)) for path, label in zip(files, labels, strict=True)]


def _metadata(path: Path) -> Metadata | None:
    if not is_onnx(path):
        return read_sidecar(path)
    model = load_model(path)
    if not is_rewritten(model):
        return None
    return parse_metadata(metadata_of(model), str(path))


def padded_runner(original: Original, name: str, path: Path) -> PaddedRunner:
    """A file with the original's inputs in onnxruntime on the CPU."""
    return PaddedRunner(original, name, OnnxrtRunner(partial(open_padded, path)))


def make_subjects(
    original: Original,
    candidates: Sequence[Candidate],
    names: Sequence[str],
    batches: Sequence[ComparedBatch],
    settings: Settings,
) -> list[Subject]:
    """The runners to compare with the reference.

    Args:
        original: the reference.
        candidates: files.
        names: of RUNNERS; empty takes what fits the files.
        batches: engines that are built here take all of them.
        settings: see Settings.

    Raises:
        BuildError: a runner has no file, or a file no runner.
    """
    subjects: list[Subject] = []
    for item in candidates:
        subjects += _of_file(original, item, names, batches, settings)
    if "trt-padded" in names:
        plan = cache(partial(_build_padded, original, batches, settings))
        padded = SessionRunner(original, "trt-padded", plan, device=settings.device)
        subjects.append(Subject(padded, "fp16", True, settings.tolerance("fp16")))
    if "torch" in names:
        subjects.append(Subject(torch_runner(original, settings.torch_model), "fp32", True, settings.tolerance("fp32")))
    missing = [
        name for name in names if name != REFERENCE and not any(c.runner.name.startswith(name) for c in subjects)
    ]
    if missing or not subjects:
        raise BuildError(
            f"no file for the runners {', '.join(missing) or 'asked for'}; onnxrt-packed takes a rewritten .onnx file, "
            "trt a plan or a rewritten .onnx file"
        )
    return subjects


def _of_file(
    original: Original, item: Candidate, names: Sequence[str], batches: Sequence[ComparedBatch], settings: Settings
) -> list[Subject]:
    if item.metadata is None:
        runner = padded_runner(original, f"{REFERENCE}: {item.label}", item.path)
        return [Subject(runner, "fp32", True, settings.tolerance("fp32"))]
    subjects = []
    path: Callable[[], Path]
    inside: Callable[[], Inside] | None
    if item.is_plan and (not names or "trt" in names):
        subjects.append(_session(original, f"trt: {item.label}", lambda: item.path, item, settings))
    if not item.is_plan and (not names or "onnxrt-packed" in names):
        path = cache(partial(_runnable_on_cpu, item.path, item.metadata.precision, settings))
        inside = partial(CpuInside, item.path, item.metadata.precision)
        subjects.append(_session(original, f"onnxrt-packed: {item.label}", path, item, settings, inside))
    if not item.is_plan and "trt" in names:
        engine = partial(_build, batches=batches, settings=settings)
        look = partial(inside_engine, item.path, item.metadata.precision, engine, settings.device)
        # Engines of the padded interface have tensors inside whose sizes depend on data: no memory can be set aside.
        inside = look if item.metadata.is_packed else None
        path = cache(lambda: engine(load_model(item.path)))
        subjects.append(_session(original, f"trt: {item.label}", path, item, settings, inside))
    return subjects


def _session(
    original: Original,
    name: str,
    path: Callable[[], Path],
    item: Candidate,
    settings: Settings,
    inside: Callable[[], Inside] | None = None,
) -> Subject:
    metadata = item.metadata
    if metadata is None:
        raise AssertionError("sessions run what padfree made")
    runner = SessionRunner(original, name, path, device=settings.device)
    rewritten = None if item.is_plan else item
    half = {"float16": "fp16", "bfloat16": "bf16"}  # outputs of half precision originals are rounded at the end
    rounded = next((half[output.dtype] for output in metadata.outputs if output.dtype in half), metadata.precision)
    tolerance = settings.tolerance(rounded if metadata.precision == "fp32" else metadata.arithmetic)
    return Subject(runner, metadata.arithmetic, metadata.interface == "padded", tolerance, rewritten, inside)


def open_padded(path: Path) -> ort.InferenceSession:
    """A padded file in onnxruntime, as verification opens it. Raises BuildError where onnxruntime does not take it."""
    model = open_model(path)
    model.weights.align()
    try:
        session = open_session(model.with_proto(runnable(model.proto)))
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise BuildError(
            f"onnxruntime {ort.__version__} does not load '{path}': {error}; check the file with onnx.checker"
        ) from error
    model.weights.check_files()
    return session


def _runnable_on_cpu(path: Path, precision: str, settings: Settings) -> Path:
    """The file itself if it is fp32, else one that rounds as it would."""
    if precision == "fp32":
        return path
    target = settings.scratch("rounding.onnx")
    save_model(with_rounding(Model(load_model(path)), precision).proto, target)
    return target


def _build(model: ModelProto, batches: Sequence[ComparedBatch], settings: Settings) -> Path:
    plan = settings.scratch("model.plan")
    # Unverified: what is wrong with an engine is what the comparison is to tell.
    build_engine(model, plan, verify=False, **_extent(batches), device=settings.device)
    return plan


def _build_padded(original: Original, batches: Sequence[ComparedBatch], settings: Settings) -> Path:
    plan = settings.scratch("original.plan")
    build_padded_engine(original.model, plan, **_extent(batches), device=settings.device)
    return plan


def _extent(batches: Sequence[ComparedBatch]) -> dict[str, Any]:
    return {
        "max_batch": max(batch.mask.shape[0] for batch in batches),
        "max_seq_len": max(batch.mask.shape[1] for batch in batches),
    }
