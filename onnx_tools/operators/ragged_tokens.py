# SPDX-License-Identifier: Apache-2.0
"""Ragged tokens inside function bodies, as a grid [B,Smax] that ends at the longest sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from .body_builder import BodyBuilder


@dataclass(frozen=True)
class RaggedTokens:
    """The names of the values in a body that describe its sequences. Smax is the longest length, at least 1."""

    starts: str  # int64 [B]
    lens: str  # int64 [B]
    total: str  # int64 [1], tokens that are not filler
    smax: str  # int64 [1]
    mask: str  # bool [B,Smax], true where a token is


def ragged_from_cu_seqlens(b: BodyBuilder, cu: str) -> RaggedTokens:
    """The description of the sequences in `cu`, which is cu_seqlens as int64 [B+1]."""
    end = b.integers(np.iinfo(np.int64).max)
    starts = b.op("Slice", cu, [0], [-1])
    ends = b.op("Slice", cu, [1], end)
    lens = b.op("Sub", ends, starts)
    longest = b.along("ReduceMax", b.op("Concat", lens, [1], axis=0), 0, keepdims=1)
    mask = b.op("Less", b.unsqueeze(b.range(longest), 0), b.unsqueeze(lens, 1))
    return RaggedTokens(starts, lens, b.op("Slice", cu, [-1], end), longest, mask)


def grid_token(b: BodyBuilder, ragged: RaggedTokens) -> str:
    """int64 [B,Smax]: the token in each slot of the grid, -1 where there is none."""
    column = b.unsqueeze(b.range(ragged.smax), 0)
    token = b.op("Add", b.unsqueeze(ragged.starts, 1), column)
    return b.op("Where", ragged.mask, token, -1)


def token_slot(b: BodyBuilder, ragged: RaggedTokens) -> tuple[str, str]:
    """int64 [N] and [N]: the sequence of every token that is not filler, and its position there."""
    slots = b.op("NonZero", ragged.mask)
    sequence, position = (b.op("Gather", slots, b.const(row), axis=0) for row in (0, 1))
    return sequence, position


def pad_index(b: BodyBuilder, index: str, tokens: str, value: int) -> str:
    """int64 [T]: `index` [N], then `value` for every filler token; tokens is T as int64 [1]."""
    missing = b.op("Sub", tokens, b.op("Shape", index))
    return b.op("Concat", index, b.fill(missing, value), axis=0)


def is_live(b: BodyBuilder, ragged: RaggedTokens, tokens: str) -> str:
    """Bool [T,1]: whether a token is not filler."""
    return b.unsqueeze(b.op("Less", b.range(tokens), ragged.total), 1)


@dataclass(frozen=True)
class Prefixes:
    """The names of the values in a body that describe sequences whose tokens come after another sequence's."""

    parents: str  # int64 [B], 0 where there is none
    lens: str  # int64 [B], of the parents, 0 where there is none


def prefixes(b: BodyBuilder, ragged: RaggedTokens) -> Prefixes:
    """The description of the input `prefix`: numbers of other sequences; whatever else it holds means none.

    So does a single number: it is none's, or that of the only sequence.
    """
    numbers, batch = b.load_index("prefix"), b.op("Shape", ragged.lens)
    is_whole = b.op("Equal", b.op("Shape", numbers), batch)
    prefix = b.op("Expand", b.op("Where", is_whole, numbers, -1), batch)
    inside = b.op("And", b.op("GreaterOrEqual", prefix, 0), b.op("Less", prefix, batch))
    has_parent = b.op("And", inside, b.op("Not", b.op("Equal", prefix, b.range(batch))))
    parents = b.op("Where", has_parent, prefix, 0)
    return Prefixes(parents, b.op("Where", has_parent, b.op("Gather", ragged.lens, parents, axis=0), 0))


def bool_to_bias(b: BodyBuilder, mask: str) -> str:
    """float32 in the mask's shape: 0 where it is true, else the lowest float (finite: no NaN in empty rows)."""
    hidden = b.op("Cast", b.op("Not", mask), to=TensorProto.FLOAT)
    return b.op("Mul", hidden, b.const(np.finfo(np.float32).min, np.float32))
