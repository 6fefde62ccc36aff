# SPDX-License-Identifier: Apache-2.0
"""RotaryEmbedding: rotates pairs of elements of every head by angles that tables hold for each position."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis import STANDARD_DOMAINS
from .expansion import Expansion, NotImportable


def rotary_embedding(e: Expansion) -> gs.Tensor:
    """onnxruntime's RotaryEmbedding or the standard's; x is [B,S,H*D] or [B,H,S,D].

    Positions are [B,S], or one number, the first token's. The standard's may be left out: its tables hold a row for
    every token then.
    """
    if e.integer("is_packed_batching"):
        raise NotImportable("it works on ragged batches (is_packed_batching=1)")
    if e.number("scale", 1.0) != 1.0:
        raise NotImportable(f"it has a scale of {e.number('scale', 1.0)}")
    standard = e.node.domain in STANDARD_DOMAINS
    x, positions = e.input(0, "tensor"), e.optional_input(3) if standard else e.input(1, "positions")
    tables = [e.input(position - standard, "table") for position in (2, 3)]
    half = e.width(tables[0], "table")
    width = e.width(x, "tensor")
    size = width if len(e.shape(x, "tensor")) == 4 else _head_size(e, width, 2 * half)
    return rotate(e, x, size, (tables[0], tables[1]), positions, interleaved=bool(e.integer("interleaved")))


def rotate(
    e: Expansion,
    x: gs.Tensor,
    size: int,
    tables: tuple[gs.Tensor, gs.Tensor],
    positions: gs.Tensor | None,
    *,
    interleaved: bool,
) -> gs.Tensor:
    """Heads [B,S,H*D] of this size, or [B,H,S,D], rotated by rows of two tables, at positions [B,S] or all."""
    width, half, split = e.width(x, "tensor"), e.width(tables[0], "table"), len(e.shape(x, "tensor")) == 4
    heads = x if split else e.reshape(x, 0, 0, width // size, size)
    cosine, sine = (_angles(e, table, positions, x, 2 if split else 1) for table in tables)
    result = _rotated_heads(e, heads, size, (cosine, sine), half, interleaved=interleaved)
    return result if split else e.reshape(result, 0, 0, width)


def _rotated_heads(
    e: Expansion, heads: gs.Tensor, size: int, angles: tuple[gs.Tensor, gs.Tensor], half: int, *, interleaved: bool
) -> gs.Tensor:
    """Heads [B,S,H,D] or [B,H,S,D] with their first 2 * half elements rotated."""
    cosine, sine = angles
    whole = e.columns(heads, 0, 2 * half) if 2 * half < size else heads
    if interleaved:
        first, second = (e.columns(whole, start, 2 * half, step=2) for start in (0, 1))
    else:
        first, second = e.columns(whole, 0, half), e.columns(whole, half, 2 * half)
    parts = [
        e.op("Sub", e.op("Mul", first, cosine), e.op("Mul", second, sine)),
        e.op("Add", e.op("Mul", second, cosine), e.op("Mul", first, sine)),
    ]
    if interleaved:
        shape = [0, 0, 0, half, 1]
        result = e.op("Concat", *(e.reshape(part, *shape) for part in parts), axis=4)
        result = e.reshape(result, 0, 0, 0, 2 * half)
    else:
        result = e.op("Concat", *parts, axis=3)
    if 2 * half < size:
        result = e.op("Concat", result, e.columns(heads, 2 * half, size), axis=3)
    return result


def _head_size(e: Expansion, width: int, rotary: int) -> int:
    heads = e.integer("num_heads")
    if heads == 0 and e.integer("rotary_embedding_dim"):
        raise NotImportable("it has rotary_embedding_dim without num_heads")
    size = rotary if heads <= 0 else width // heads
    if size < rotary or width % size:
        raise NotImportable(f"{width} columns are no heads of {size} elements of which {rotary} are rotated")
    return size


def _angles(e: Expansion, table: gs.Tensor, positions: gs.Tensor | None, x: gs.Tensor, sequence: int) -> gs.Tensor:
    """Rows of a table at every position, as [B or 1,S,1,D/2] or, for heads first, [B or 1,1,S,D/2]."""
    rows = table if positions is None else _looked_up(e, table, positions, x, sequence)
    return e.unsqueeze(rows, 3 - sequence)


def _looked_up(e: Expansion, table: gs.Tensor, positions: gs.Tensor, x: gs.Tensor, sequence: int) -> gs.Tensor:
    positions = e.uncast(positions)
    rank = len(e.shape(positions, "positions"))
    if rank == 1:
        positions = e.reshape(e.op("Add", e.slots(x, sequence), positions), 1, -1)
    elif rank != 2:
        raise NotImportable(f"its positions have {rank} axes, not 1 or 2")
    return e.op("Gather", table, positions, axis=0)
