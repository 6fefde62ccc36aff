# SPDX-License-Identifier: Apache-2.0
"""A comparison through Polygraphy's own command line: batches and scripts in a folder, for `polygraphy run`."""

from __future__ import annotations

import json
import shlex
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from padfree.onnx_tools import save_model
from padfree.onnx_tools.analysis import fits
from padfree.onnx_tools.files import Model, open_model
from padfree.onnx_tools.importing.quantized import holds_quantization, standard_rounding, without_quantization
from padfree.onnx_tools.precision import widen
from padfree.runtime import Array, Metadata, parse_metadata
from polygraphy.comparator import IterationResult
from polygraphy.logger import G_LOGGER

from ..destinations import NamedPath, check_destinations, holds_entries
from ..engine.lowering import for_parser
from ..engine.profile import ProfileOptions, choose_profile, shape_ranges
from ..errors import BuildError
from ..files import write_files, write_with
from .batches import ComparedBatch, from_feeds
from .original import COPIES, FLOAT, Original, copy_name, describe_original
from .outcomes import errors_of, is_compared, scale_of
from .reasons.intermediate import rewritten_feeds
from .runners import valid_rows
from .subject import REWRITTEN, Candidate
from .tolerances import Tolerance

DESCRIPTION, BATCHES = "comparison.json", "batches.npz"
LOADERS, COMPARISON, COMMANDS = "data_loader.py", "compare.py", "commands.sh"
FOR_TENSORRT = "for_tensorrt.onnx"
FILE_NAMES = (DESCRIPTION, BATCHES, LOADERS, COMPARISON, COMMANDS, FOR_TENSORRT)

_LOADERS_TEXT = '''"""Inputs for polygraphy run --data-loader-script: FILE:original and FILE:rewritten."""

from pathlib import Path

from padfree.builder.compare.saved import SavedComparison

_saved = SavedComparison(Path(__file__).parent)
original = _saved.original_inputs
rewritten = _saved.rewritten_inputs
'''
_COMPARISON_TEXT = '''"""Comparison of valid tokens for polygraphy run --compare-func-script."""

from pathlib import Path

from padfree.builder.compare.saved import SavedComparison

compare_outputs = SavedComparison(Path(__file__).parent)
'''


def check_folder(folder: Path, original: Path, models: Sequence[Path], inputs: Iterable[NamedPath]) -> None:
    """Refuses a folder for save_comparison where files would be lost: inputs, or others of the same names.

    Where no models are named, the original is rewritten there.

    Raises:
        BuildError: as check_destinations, or such a file exists, and the folder holds no saved comparison.
    """
    if folder.exists() and not folder.is_dir():
        raise BuildError(f"--emit-polygraphy {folder} is no folder; name a new one")
    copies = [copy_name(original, kind) for kind in COPIES]
    files = [folder / name for name in (*FILE_NAMES, *copies, *([] if models else [REWRITTEN]))]
    existing_names = [file.name for file in files if file.exists()]
    if not existing_names:
        return
    if not holds_entries(folder / DESCRIPTION, {"original", "batches", "metadata", "tolerance"}):
        raise BuildError(
            f"--emit-polygraphy {folder} holds {', '.join(existing_names)}, and no comparison that padfree wrote: that "
            "would be lost; name a new folder"
        )
    check_destinations([("--emit-polygraphy's", file) for file in files], inputs)


class SavedComparison:
    """The batches of a folder that `save_comparison` wrote, and the comparison of what two models made of them.

    Raises:
        BuildError, SessionError: the folder or a model it names is gone or damaged.
    """

    def __init__(self, folder: Path) -> None:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        self._metadata = parse_metadata(description["metadata"], str(folder / DESCRIPTION))
        self._original = describe_original(Path(description["original"]), [self._metadata], folder)
        self._tolerance = Tolerance(**description["tolerance"])
        with np.load(folder / BATCHES, allow_pickle=False) as file:
            self._batches = [
                from_feeds(name, {item: file[f"{at}.{item}"] for item in description["inputs"]}, self._original)
                for at, name in enumerate(description["batches"])
            ]

    def original_inputs(self) -> Iterator[OrderedDict[str, Array]]:
        """The original's inputs, batch by batch."""
        for batch in self._batches:
            yield OrderedDict(batch.feeds)

    def rewritten_inputs(self) -> Iterator[OrderedDict[str, Array]]:
        """The rewritten model's inputs, batch by batch."""
        for batch in self._batches:
            yield OrderedDict(rewritten_feeds(batch, self._original, self._metadata))

    def __call__(self, first: IterationResult, second: IterationResult) -> OrderedDict[str, bool]:
        """Output name -> whether all valid tokens agree; Polygraphy calls this for every iteration."""
        batch = next((item for item in self._batches if self._fits(item, first) and self._fits(item, second)), None)
        if batch is None:
            shapes = [{name: array.shape for name, array in item.items()} for item in (first, second)]
            raise BuildError(f"no batch of this folder gives outputs of the shapes {shapes}; run both models on it")
        verdicts: OrderedDict[str, bool] = OrderedDict()
        for name in self._original.layouts:
            if is_compared(self._original, name, batch):
                a, b = (self._rows(item[name], name, batch) for item in (first, second))
                errors = errors_of(self._original, name, [batch], [a], [b], scale_of([a]))
                verdicts[name] = errors.total.within(self._tolerance)
                worst = errors.worst[0]
                G_LOGGER.info(
                    f"{name}, batch '{batch.name}': absolute {errors.total.absolute:.2e}, relative "
                    f"{errors.total.relative:.2e}; worst: request {worst.request}, position {worst.position}, "
                    f"{worst.wanted:.6g} and {worst.found:.6g}"
                )
        return verdicts

    def _fits(self, batch: ComparedBatch, result: IterationResult) -> bool:
        return all(
            fits(array.shape, self._original.dims[name], batch.mask)
            or (self._original.has_token_rows(name) and len(array) == batch.mask.sum())
            for name, array in result.items()
            if name in self._original.layouts
        )

    def _rows(self, array: Array, name: str, batch: ComparedBatch) -> Array:
        dims = self._original.dims[name]
        return valid_rows(array, dims, batch.mask) if fits(array.shape, dims, batch.mask) else array


def save_comparison(
    folder: Path,
    source: Path,
    original: Original,
    candidate: Candidate,
    batches: Sequence[ComparedBatch],
    tolerance: Tolerance,
) -> tuple[str, ...]:
    """Writes everything `polygraphy run` needs to compare a rewritten .onnx file with its original.

    `source` is the original's file as it was given. Returns the commands, which also stand in commands.sh.

    Raises:
        BuildError: not a rewritten .onnx file, or the folder cannot be written.
    """
    metadata = candidate.metadata
    if metadata is None or candidate.is_plan:
        raise BuildError(f"{candidate.path}: Polygraphy's commands are written for rewritten .onnx files; name one")
    folder.mkdir(parents=True, exist_ok=True)
    usable = [batch for batch in batches if batch.is_usual(original) or metadata.interface == "padded"]
    distinct = _of_different_shapes(usable)
    inputs = [item.name for item in original.inputs]
    arrays: dict[str, Any] = {f"{at}.{name}": batch.feeds[name] for at, batch in enumerate(distinct) for name in inputs}
    write_with(folder / BATCHES, partial(np.savez, allow_pickle=False, **arrays))
    description = {
        "original": str(source.resolve()),
        "inputs": inputs,
        "batches": [batch.name for batch in distinct],
        "metadata": dict(metadata.raw),
        "tolerance": asdict(tolerance),
    }
    max_batch, max_seq_len = (max(batch.mask.shape[axis] for batch in distinct) for axis in (0, 1))
    save_model(for_parser(open_model(candidate.path), max_seq_len), folder / FOR_TENSORRT)
    reference = _reference(folder, source, original)
    commands = _commands(reference, candidate.path, metadata, max_batch, max_seq_len)
    script = "\n".join(["set -e", 'cd "$(dirname "$0")"', *commands, ""])
    texts = {LOADERS: _LOADERS_TEXT, COMPARISON: _COMPARISON_TEXT, COMMANDS: script}
    texts[DESCRIPTION] = json.dumps(description, indent=1)
    write_files([(folder / name, text.encode()) for name, text in texts.items()])
    return tuple(commands)


def _reference(folder: Path, source: Path, original: Original) -> Path:
    """What Polygraphy runs as the original: the file itself, or a quantised one's copy with float weights.

    Polygraphy cannot pass ORT_AS_WRITTEN, without which onnxruntime multiplies by weights of int8 in integers.
    """
    model = standard_rounding(original.exported)
    if not holds_quantization(model):
        return source
    path = folder / copy_name(source, FLOAT)
    save_model(widen(without_quantization(Model(model)).model).whole(), path)
    return path


def _shape(name: str, sizes: Sequence[int]) -> str:
    """A tensor's shape as Polygraphy's options take it, for a shell."""
    return shlex.quote(f"{name}:[{','.join(map(str, sizes))}]")


def _of_different_shapes(batches: Sequence[ComparedBatch]) -> list[ComparedBatch]:
    """Polygraphy's comparison functions are not told which iteration they see: B and S tell, after some are cut."""
    by_shape: dict[tuple[int, ...], ComparedBatch] = {}
    for batch in batches:
        for count in range(len(batch.mask), 0, -1):
            shape = (count, batch.mask.shape[1])
            if shape not in by_shape:
                feeds = {name: grid[:count] for name, grid in batch.feeds.items()}
                by_shape[shape] = replace(batch, feeds=feeds, mask=batch.mask[:count])
                break
    return list(by_shape.values())


def _commands(original: Path, rewritten: Path, metadata: Metadata, max_batch: int, max_seq_len: int) -> list[str]:
    """The original in onnxruntime, then the rewritten file in onnxruntime, then in TensorRT (as a comment)."""
    profile = choose_profile(metadata, ProfileOptions(max_batch=max_batch, max_seq_len=max_seq_len))
    ranges = shape_ranges(metadata, profile)
    shapes = [
        f"--trt-{which}-shapes " + " ".join(_shape(item.name, getattr(item, field)) for item in ranges)
        for which, field in (("min", "minimum"), ("opt", "optimum"), ("max", "maximum"))
    ]
    first, second = (shlex.quote(str(path.resolve())) for path in (original, rewritten))
    comparison = (
        f"--data-loader-script {LOADERS}:rewritten --load-outputs original.json "
        f"--compare-func-script {COMPARISON}:compare_outputs"
    )
    return [
        f"polygraphy run {first} --onnxrt --data-loader-script {LOADERS}:original --save-outputs original.json",
        f"polygraphy run {second} --onnxrt {comparison}",
        "# on a machine with TensorRT (libpadfree_register.so lies beside libpadfree.so):",
        f"# polygraphy run {FOR_TENSORRT} --trt --strongly-typed --plugins libpadfree_register.so {comparison} "
        + " ".join(shapes),
    ]
