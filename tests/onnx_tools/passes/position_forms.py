# SPDX-License-Identifier: Apache-2.0
"""Rows of a position table, taken in the ways that exporters and people write."""

from __future__ import annotations

import numpy as np

from tests.support.encoder import HIDDEN, POSITIONS, EncoderBuilder

from .token_forms import transpose


def length(b: EncoderBuilder, offset: int = 0) -> str:
    """int64 [1]: S plus an offset."""
    size = b.op("Shape", "input_ids", start=1)
    return b.op("Add", size, b.axes(offset)) if offset else size


def steps(b: EncoderBuilder) -> str:
    """int64 [S]: 0, 1, ..."""
    zero, one = b.constant(0, np.int64), b.constant(1, np.int64)
    return b.op("Range", zero, b.op("Squeeze", length(b)), one)


def by_range(b: EncoderBuilder) -> str:
    return b.op("Gather", b.weight(POSITIONS, HIDDEN), steps(b))


def by_range_and_offset(b: EncoderBuilder) -> str:
    return b.op("Gather", b.weight(POSITIONS, HIDDEN), b.op("Add", steps(b), b.constant(2, np.int64)))


def by_slice(b: EncoderBuilder) -> str:
    return b.op("Slice", b.weight(POSITIONS, HIDDEN), b.axes(0), length(b), b.axes(0))


def by_slice_of_three_axes(b: EncoderBuilder) -> str:
    return b.op("Slice", b.weight(1, POSITIONS, HIDDEN), b.axes(0), length(b), b.axes(1))


def by_slice_with_offset(b: EncoderBuilder) -> str:
    return b.op("Slice", b.weight(1, POSITIONS, HIDDEN), b.axes(2), length(b, 2), b.axes(1))


def length_first(b: EncoderBuilder) -> str:
    rows = b.op("Slice", b.weight(POSITIONS, 1, HIDDEN), b.axes(0), length(b), b.axes(0))
    return transpose(b, rows, 1, 0, 2)


def expand(b: EncoderBuilder) -> str:
    rows = b.op("Unsqueeze", by_slice(b), b.axes(0))
    return b.op("Expand", rows, b.op("Concat", b.op("Shape", "input_ids"), b.axes(HIDDEN), axis=0))


def scale(b: EncoderBuilder) -> str:
    return b.op("Mul", by_slice_of_three_axes(b), b.constant(np.linspace(0.5, 1.5, HIDDEN)))


ROWS = (
    by_range, by_range_and_offset, by_slice, by_slice_of_three_axes, by_slice_with_offset, length_first, expand,
    scale,
)  # fmt: skip
