# SPDX-License-Identifier: Apache-2.0
"""Repeats the check of a plan, here or on another machine, with the batches and answers that its metadata keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from padfree.contract.metadata import InputInfo, Metadata
from padfree.runtime import Array, Backend, SessionError

from ..compare.batches import prefix_mask
from ..errors import BuildError
from .batches import CheckedBatch
from .checking import answer_digest, sample_indices
from .errors import token_rows


@dataclass(frozen=True)
class Repetition:
    """One output of one batch, compared with what the plan keeps of it.

    Attributes:
        relative: for the kept numbers, the norm of the difference relative to their own; for whole numbers, the
            fraction that differs.
        same_bits: whether all numbers are those of the machine that built the plan.
    """

    batch: str
    output: str
    relative: float
    same_bits: bool
    is_right: bool


def repeat_check(backend: Backend, metadata: Metadata, source: str) -> Iterator[Repetition]:
    """Runs the batches that a plan keeps.

    Args:
        backend: runs the plan.
        metadata: the plan's.
        source: its file, for messages.

    Raises:
        BuildError: the metadata keeps no batches, or some that the plan does not take; SessionError: it does not run.
    """
    check = metadata.raw.get("check")
    if not check:
        raise BuildError(
            f"{source}: keeps no answers, as it was built with --no-verify or by an older padfree; build it again"
        )
    entries = {entry["name"]: entry for entry in metadata.raw["outputs"]}
    try:
        for batch_entry in check["batches"]:
            batch = _read(batch_entry, metadata, source)
            outputs = backend.run(batch.inputs(metadata))
            for name, answers in batch_entry["answers"].items():
                rows = token_rows(np.asarray(outputs[name]), entries[name], batch, is_packed=metadata.is_packed)
                yield _compare(batch.name, name, answers, rows, check["outputs"][name]["allowed"])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, (BuildError, SessionError)):
            raise
        raise BuildError(
            f"{source}: what it keeps of its check is damaged ({type(error).__name__}: {error}); build it again"
        ) from error


def _compare(
    batch: str, output: str, answers: Mapping[str, Any], rows: Array | None, allowance: Mapping[str, float]
) -> Repetition:
    if rows is None or list(rows.shape) != answers["shape"]:
        return Repetition(batch, output, float("inf"), False, False)
    expected = np.asarray([float(number) for number in answers["right"].split()])
    samples = rows.reshape(-1)[sample_indices(rows.size)].astype(np.float64)
    same = answer_digest(rows) == answers["engine_sha256"]
    if rows.dtype.kind in "iub":
        differ = float((expected != samples).mean()) if expected.size else 0.0
        return Repetition(batch, output, differ, same, differ <= 1 - allowance["equal"])
    with np.errstate(invalid="ignore"):
        both = np.isfinite(expected) | np.isfinite(samples)  # what is infinite in both is right
        error = float(
            np.linalg.norm((expected - samples)[both]) / (np.linalg.norm(expected[np.isfinite(expected)]) or 1.0)
        )
    return Repetition(batch, output, error, same, error <= allowance["relative"])


def _read(entry: Mapping[str, Any], metadata: Metadata, source: str) -> CheckedBatch:
    """A batch as it was written."""
    lengths = np.asarray(entry["seq_lens"])
    if "slots" in entry:
        mask = np.asarray([[int(slot) for slot in row] for row in entry["slots"]], np.bool_)
    else:
        mask = prefix_mask(lengths)
    feeds, filler = dict[str, Array](), dict[str, Array]()
    for item in metadata.token_inputs():
        if item.name not in entry["tokens"]:
            raise BuildError(
                f"{source}: keeps no values of '{item.name}', as embeddings are too many numbers; compare the plan "
                "with its original instead: padfree compare"
            )
        values = _numbers(entry["tokens"][item.name], item)
        count = len(values) - entry["filler_tokens"]
        grid = np.zeros((*mask.shape, *item.trailing_shape), values.dtype)
        grid[mask] = values[:count]
        feeds[item.name], filler[item.name] = grid, values[count:]
    rows = {item.name: _numbers(entry["of_sequences"][item.name], item) for item in metadata.sequence_inputs()}
    prefix = np.asarray(entry["prefix"].split(), np.int32) if "prefix" in entry else None
    return CheckedBatch(entry["name"], feeds, mask, filler, rows, prefix)


def _numbers(text: str, item: InputInfo) -> Array:
    values = np.asarray([float(number) if item.holds_floats else int(number) for number in text.split()])
    return values.astype(np.float32 if item.holds_floats else np.int32).reshape(-1, *item.trailing_shape)
