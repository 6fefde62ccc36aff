# SPDX-License-Identifier: Apache-2.0
"""Errors of one output against the reference: absolute, relative and cosine, overall, per length class, worst rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from padfree.onnx_tools.analysis import BATCH, SLOTS, Dims, token_elements
from padfree.onnx_tools.verification import Scale
from padfree.runtime import Array

from .batches import ComparedBatch
from .tolerances import Tolerance

Float64s = npt.NDArray[np.float64]

CLASS_ENDS = (1, 16, 64, 128, 256, 512)  # tokens; sequences longer than the last are a class of their own
WORST_ROWS = 5
WHOLE_SEQUENCE = -1  # the position of outputs with one row per sequence


@dataclass(frozen=True)
class WorstRow:
    """One of the rows that differ most: where it is, and the number in it that differs most."""

    batch: str
    request: int
    position: int | None
    element: tuple[int, ...]
    wanted: float
    found: float
    absolute: float
    relative: float


@dataclass(frozen=True)
class Errors:
    """Errors over some rows; what they mean is said at Tolerance. cosine is the smallest of any row.

    sequence_cosine is the smallest of any sequence: of all its rows as one vector.
    """

    rows: int
    absolute: float
    relative: float
    mean_relative: float
    cosine: float
    sequence_cosine: float

    def within(self, tolerance: Tolerance) -> bool:
        """Whether no row, and no sequence, is over the tolerance."""
        fits = self.absolute <= tolerance.absolute and self.relative <= tolerance.relative
        return fits and (tolerance.cosine is None or self.sequence_cosine >= tolerance.cosine)


@dataclass(frozen=True)
class OutputErrors:
    """One output of one runner over all batches.

    scale: the root mean square that the output's columns usually have in the original; absolute errors are in parts of
        it, or of the column's own where columns differ.
    not_finite: numbers that are infinite or NaN where the original's are not.
    classes: length class ("17-64" tokens) -> errors of the sequences in it.
    worst: the rows that differ most, worst first.
    """

    output: str
    scale: float
    total: Errors
    not_finite: int
    classes: dict[str, Errors]
    worst: tuple[WorstRow, ...]


@dataclass(frozen=True)
class _OutputRows:
    """What is measured of every row of one batch, [R] each."""

    batch: ComparedBatch
    slots: npt.NDArray[np.int64]  # [R, 2]: sequence and slot
    absolute: Float64s
    relative: Float64s
    cosine: Float64s
    sequence_cosine: Float64s
    elements: npt.NDArray[np.int64]
    expected: Float64s
    actual: Float64s
    shape: tuple[int, ...]
    not_finite: int


def output_errors(
    output: str,
    batches: Sequence[ComparedBatch],
    expected: Sequence[Array],
    actual: Sequence[Array],
    scale: Scale,
    dims: Dims,
) -> OutputErrors:
    """Measures one output.

    Args:
        output: its name.
        batches: what was run.
        expected: the reference's valid rows of each batch, [R, ...].
        actual: the other runner's, of the same shapes.
        scale: what the output's numbers are measured by.
        dims: sizes of the padded output's axes, of which R rows were taken.
    """
    measurements = [
        _measure(*item, scale, dims) for item in zip(batches, expected, actual, strict=True) if item[1].size
    ]
    lengths = np.concatenate([rows.batch.seq_lens[rows.slots[:, 0]] for rows in measurements])
    columns = tuple(
        np.concatenate(parts)
        for parts in zip(*((r.absolute, r.relative, r.cosine, r.sequence_cosine) for r in measurements), strict=True)
    )
    classes = {}
    for start, end in zip((0, *CLASS_ENDS), (*CLASS_ENDS, np.inf), strict=True):
        in_range = (lengths > start) & (lengths <= end)
        if in_range.any():
            name = f"{start + 1}-{end}" if end < np.inf else f"over {start}"
            classes["1" if end == 1 else name] = _errors(*(column[in_range] for column in columns))
    return OutputErrors(
        output,
        scale.usual,
        _errors(*columns),
        sum(rows.not_finite for rows in measurements),
        classes,
        _worst(measurements),
    )


def _measure(batch: ComparedBatch, expected: Array, actual: Array, scale: Scale, dims: Dims) -> _OutputRows:
    a, b = (array.reshape(len(array), -1) for array in (expected, actual))
    difference = scale.differences(a, b)
    parts = [scale.parts(array, of=a) for array in (a, b)]
    with np.errstate(invalid="ignore", over="ignore"):
        length, other = (np.linalg.norm(part, axis=1) for part in parts)
        relative = np.linalg.norm(difference, axis=1) / np.maximum(length, a.shape[1] ** 0.5)
        dot = np.einsum("re,re->r", *parts)
        cosine = dot / np.maximum(length * other, np.finfo(np.float64).tiny)
    cosine[(difference == 0).all(1)] = 1.0
    elements = difference.argmax(1)
    each, indices = np.arange(len(a)), _slots_of_rows(batch, dims, len(a))
    return _OutputRows(
        batch, indices,
        difference[each, elements], relative, np.nan_to_num(cosine, nan=-1.0),
        _sequence_cosines(indices[:, 0], dot, length, other), elements,
        a[each, elements].astype(np.float64), b[each, elements].astype(np.float64),
        expected.shape[1:], int((np.isfinite(expected) & ~np.isfinite(actual)).sum()),
    )  # fmt: skip


def _sequence_cosines(sequences: npt.NDArray[np.int64], dot: Float64s, length: Float64s, other: Float64s) -> Float64s:
    """For every row [R], the cosine of its whole sequence, from the rows' dot products and lengths; 1 between zeros."""
    with np.errstate(invalid="ignore", over="ignore"):
        together, a, b = (np.bincount(sequences, weights=item) for item in (dot, length**2, other**2))
        lengths = np.sqrt(a * b)
        cosines_of_rows = np.where((a == 0) & (b == 0), 1.0, together / np.maximum(lengths, np.finfo(np.float64).tiny))
    cosines: Float64s = np.nan_to_num(cosines_of_rows, nan=-1.0)[sequences]
    return cosines


def _slots_of_rows(batch: ComparedBatch, dims: Dims, count: int) -> npt.NDArray[np.int64]:
    """Sequence and slot of every kept row: the first slot where there are several, the whole sequence without any."""
    axes = [part for size in dims if isinstance(size, str) for part in size.split("*")]
    if BATCH not in axes or not {BATCH, SLOTS}.issuperset(axes):
        return np.tile(np.asarray([0, WHOLE_SEQUENCE]), (count, 1))
    indices = np.argwhere(token_elements(tuple(axes), batch.mask))
    slots = indices[:, axes.index(SLOTS)] if SLOTS in axes else np.full(len(indices), WHOLE_SEQUENCE)
    return np.stack([indices[:, axes.index(BATCH)], slots], axis=1)


def _errors(absolute: Float64s, relative: Float64s, cosine: Float64s, sequence_cosine: Float64s) -> Errors:
    least = (float(values.min()) for values in (cosine, sequence_cosine))
    return Errors(len(absolute), float(absolute.max()), float(relative.max()), float(relative.mean()), *least)


def _worst(measurements: Sequence[_OutputRows]) -> tuple[WorstRow, ...]:
    """The worst row of each of the worst sequences: neighbours of one bad token say nothing new."""
    worst_rows: list[WorstRow] = []
    for rows in measurements:
        sequences: set[int] = set()
        for row in np.argsort(-rows.relative, kind="stable"):
            sequence, slot = (int(value) for value in rows.slots[row])
            if len(sequences) == WORST_ROWS:
                break
            if sequence in sequences:
                continue
            sequences.add(sequence)
            element = tuple(int(i) for i in np.unravel_index(int(rows.elements[row]), rows.shape)) if rows.shape else ()
            worst_rows.append(
                WorstRow(
                    rows.batch.name, sequence, None if slot == WHOLE_SEQUENCE else slot, element,
                    *(float(column[row]) for column in (rows.expected, rows.actual, rows.absolute, rows.relative)),
                )
            )  # fmt: skip
    return tuple(sorted(worst_rows, key=lambda item: -item.relative)[:WORST_ROWS])
