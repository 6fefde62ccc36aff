# SPDX-License-Identifier: Apache-2.0
"""Follows Q, K, V and the context through reshapes and transposes, and proves which column each element comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import REORDERINGS, RESHAPES, B, Movement, S, is_standard, made_by, moving, node_name, token_axis
from ...analysis.symbolic import Analysis, Poly, axis_of, permutation, slice_arguments, split_sizes
from .. import NoMatch
from .rotary import Rotation, Rotations

MOVEMENTS = REORDERINGS | moving(Movement.PART)
_RESHAPED = RESHAPES | moving(Movement.REPEATED)
REPEATS = moving(Movement.REPEATED) | {"Concat"}  # operators that repeat heads which several query heads read
HEADS_FIRST, TOKENS_FIRST, KEYS_LAST = (0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)
"""The permutations that make [B,H,S,D] of [B,H,S,D] itself, of [B,S,H,D], and of [B,H,D,S]."""
_MOST_MOVEMENTS = 16  # of a context; tf2onnx writes nine
_SIZES = ((2, 3), (3, 5))  # B and S for which movements are tried; two pairs tell B, S and constants apart


@dataclass(frozen=True)
class HeadsSource:
    """A tensor [B,S,N] and the column that each head's element is read from.

    Where heads are worked on before the scores, as by norms of Q and K, there is no such tensor: then `order` is the
    permutation that makes [B,S,H,D] of the tensor, and N is H*D. `by_head`: heads are [H*B,S,D] and not [B*H,S,D].
    `rotation`: how heads are rotated after they have been read.
    """

    tensor: gs.Tensor
    columns: np.ndarray  # [H,D]
    factor: float
    order: tuple[int, ...] | None = None
    by_head: bool = False
    rotation: Rotation | None = None

    @property
    def num_heads(self) -> int:
        """The number of heads, H."""
        return int(self.columns.shape[0])

    def in_pairs(self) -> HeadsSource:
        """The source with a head's elements in an order that PadfreeRotary knows: any order gives the same scores."""
        rotation = self.rotation
        if rotation is None or rotation.pairing is not None:
            return self
        order, half = [*rotation.first, *rotation.second], len(rotation.first)
        paired = replace(rotation, first=tuple(range(half)), second=tuple(range(half, 2 * half)))
        return replace(self, columns=self.columns[:, order], rotation=paired)

    def with_shared_heads(self) -> HeadsSource:
        """The source with every head once, where each is repeated the same number of times in a row."""
        first = self.columns[:1]
        copies = next((i for i, row in enumerate(self.columns) if not np.array_equal(row, first[0])), self.num_heads)
        once = self.columns[::copies]
        return replace(self, columns=once) if np.array_equal(np.repeat(once, copies, 0), self.columns) else self


def trace_heads(
    analysis: Analysis,
    tensor: gs.Tensor,
    what: str,
    *,
    perm: tuple[int, ...] = HEADS_FIRST,
    rotations: Rotations | None = None,
) -> HeadsSource:
    """Where a tensor comes from of which `perm` makes Q, K or V [B,H,S,D]; with `rotations`, before it is rotated.

    Batch and heads may be merged, in either order. Raises NoMatch with the reason.
    """
    chain: list[tuple[gs.Node, gs.Tensor]] = []
    factor, current = 1.0, tensor
    best: tuple[gs.Tensor, int, float] | None = None
    split: tuple[gs.Tensor, int, float] | None = None
    while True:
        if _is_tokens(analysis, current):
            best = (current, len(chain), factor)
        elif _order(analysis, current) is not None:
            split = (current, len(chain), factor)
        scaled = scale_of(analysis, current)
        if scaled is not None:
            current, part = scaled
            factor *= part
            continue
        node = made_by(current, *MOVEMENTS, *REPEATS)
        if node is None or (is_standard(node, "Concat") and any(item is not node.inputs[0] for item in node.inputs)):
            break
        if not is_standard(node, "Identity"):
            chain.append((node, current))
        current = node.inputs[0]
    best_split = best or split
    if best_split is None:
        producer = current.inputs[0].op if current.inputs else "input"
        raise NoMatch(f"{what} is no [batch, sequence, hidden] tensor split into heads: it comes from {producer}")
    rotation = None if split is None or rotations is None or (best and best[1] >= split[1]) else rotations.of(split[0])
    source, length, total = split if rotation is not None and split is not None else best_split
    best = None if rotation is not None else best
    moves, order = chain[:length][::-1], _order(analysis, source) if best is None else None
    try:
        columns, by_head = _columns(analysis, source, moves, tensor, what, perm, False), False
    except NoMatch:
        if analysis[tensor].rank != 3:
            raise
        columns, by_head = _columns(analysis, source, moves, tensor, what, perm, True), True
    plain = HeadsSource(source, columns, total, order, by_head)
    return plain if rotation is None else _before(analysis, plain, *rotation, what)


def _before(analysis: Analysis, after: HeadsSource, heads: gs.Tensor, rotation: Rotation, what: str) -> HeadsSource:
    """Where heads come from that are rotated before they are read as `after` says."""
    first = token_axis(analysis[heads].shape) == 1
    before = trace_heads(analysis, heads, what, perm=TOKENS_FIRST if first else HEADS_FIRST)
    head, element = np.divmod(after.columns, before.columns.shape[1])
    if not np.array_equal(element, np.broadcast_to(np.arange(before.columns.shape[1]), element.shape)):
        raise NoMatch(f"{what} mixes elements of rotated heads")
    factor = after.factor * before.factor * rotation.factor
    return HeadsSource(before.tensor, before.columns[head, element], factor, before.order, after.by_head, rotation)


def _order(analysis: Analysis, tensor: gs.Tensor) -> tuple[int, ...] | None:
    """The permutation that makes [B,S,H,D] of [B,S,H,D] or [B,H,S,D]; None for other shapes."""
    shape = analysis[tensor].shape
    axis = token_axis(shape)
    if shape is None or len(shape) != 4 or axis not in (1, 2):
        return None
    return (0, 1, 2, 3) if axis == 1 else (0, 2, 1, 3)


def scale_of(analysis: Analysis, tensor: gs.Tensor) -> tuple[gs.Tensor, float] | None:
    """(x, f) where the tensor is x * f or x / (1/f) with a known number."""
    node = made_by(tensor, "Mul", "Div")
    if node is None:
        return None
    for this, other in ((0, 1), (1, 0)):
        number = analysis[node.inputs[other]].scalar()
        if number is not None and analysis[node.inputs[this]].shape == analysis[tensor].shape:
            if node.op == "Mul":
                return node.inputs[this], number
            if other == 1 and number != 0:
                return node.inputs[this], 1.0 / number
    return None


def _is_tokens(analysis: Analysis, tensor: gs.Tensor) -> bool:
    shape = analysis[tensor].shape
    if shape is None or len(shape) != 3:
        return False
    return shape[:2] == (Poly.atom("B"), Poly.atom("S")) and shape[2].constant() is not None


def _columns(
    analysis: Analysis,
    source: gs.Tensor,
    moves: Sequence[tuple[gs.Node, gs.Tensor]],
    target: gs.Tensor,
    what: str,
    perm: tuple[int, ...],
    by_head: bool,
) -> np.ndarray:
    shape, order = analysis[source].shape or (), _order(analysis, source)
    sizes = [shape[axis].constant() or 0 for axis in (order[2:] if order is not None else (2,))]
    width = int(np.prod(sizes))
    common: np.ndarray | None = None
    for batch, length in _SIZES:
        values = np.arange(batch * length * width).reshape(batch, length, *sizes)
        if order is not None:
            values = values.transpose(order)  # its own inverse
        for node, output in moves:
            values = _follow(analysis, node, output, values, {"B": batch, "S": length})
        values = _as_heads(values, batch, what, target, by_head).transpose(perm)
        if values.shape[0] != batch or values.shape[2] != length:
            raise NoMatch(f"{what} has the shape {values.shape} for B={batch}, S={length}, not [B, heads, S, size]")
        columns = values[0, :, 0, :]
        tokens = np.arange(batch * length).reshape(batch, 1, length, 1) * width
        if columns.max(initial=0) >= width or not np.array_equal(values, tokens + columns[None, :, None, :]):
            raise NoMatch(f"{what} mixes tokens: its reshapes and transposes move elements between positions")
        if common is not None and not np.array_equal(common, columns):
            raise NoMatch(f"{what} reads different columns for different sizes of the batch")
        common = columns
    if common is None:
        raise NoMatch(f"{what} is empty")
    return common


def _as_heads(values: np.ndarray, batch: int, what: str, target: gs.Tensor, by_head: bool) -> np.ndarray:
    if values.ndim == 3 and values.shape[0] % batch == 0:
        if by_head:
            apart: np.ndarray = values.reshape(values.shape[0] // batch, batch, *values.shape[1:]).swapaxes(0, 1)
            return apart
        return values.reshape(batch, values.shape[0] // batch, *values.shape[1:])
    if values.ndim != 4:
        raise NoMatch(f"{what} ('{target.name}') has {values.ndim} axes, not [batch, heads, sequence, size]")
    return values


def _follow(
    analysis: Analysis, node: gs.Node, output: gs.Tensor, values: np.ndarray, sizes: dict[str, int]
) -> np.ndarray:
    facts = [analysis[tensor] for tensor in node.inputs]

    def number(poly: Poly) -> int:
        try:
            return poly.evaluate(lambda name: sizes[name])
        except (KeyError, ValueError):
            raise NoMatch(f"'{node_name(node)}' ({node.op}) depends on the unknown size {poly}") from None

    if node.op == "Transpose":
        permuted: np.ndarray = values.transpose(permutation(node, values.ndim))
        return permuted
    if node.op == "Concat":
        return np.concatenate([values] * len(node.inputs), axis=axis_of(node, values.ndim))
    if node.op in _RESHAPED:
        shape = analysis[output].shape
        if shape is None:
            raise NoMatch(f"the shape that '{node_name(node)}' ({node.op}) makes is not known")
        sizes_made = [number(size) for size in shape]
        if node.op == "Expand":
            return np.broadcast_to(values, sizes_made)
        if node.op == "Tile":
            return np.tile(values, [new // old for new, old in zip(sizes_made, values.shape, strict=True)])
        return values.reshape(sizes_made)
    if node.op == "Split":
        parts = split_sizes(node, facts)
        if parts is None:
            raise NoMatch(f"'{node_name(node)}' (Split) has no known sizes")
        position = next(i for i, item in enumerate(node.outputs) if item is output)
        ends = np.cumsum(parts)
        piece = np.arange(ends[position] - parts[position], ends[position])
        return np.take(values, piece, axis=axis_of(node, values.ndim))
    if node.op == "Slice":
        limits = slice_arguments(node, facts)
        if limits is None:
            raise NoMatch(f"'{node_name(node)}' (Slice) has no known limits")
        index = [slice(None)] * values.ndim
        for start, end, axis, step in zip(*limits, strict=True):
            index[axis] = slice(number(start), number(end), step)
        return values[tuple(index)]
    indices = facts[1].plain_integers()
    if indices is None:
        raise NoMatch(f"'{node_name(node)}' ({node.op}) has no known indices")
    rank = facts[1].rank
    return np.take(values, indices[0] if rank == 0 else indices, axis=axis_of(node, values.ndim))


def follow_context(analysis: Analysis, start: gs.Tensor, heads: int, size: int, *, by_head: bool = False) -> gs.Tensor:
    """The tensor [B,S,H*D] that the context becomes; the context [B,H,S,D] itself where something else reads that.

    The context may also be [B*H,S,D], with `by_head` [H*B,S,D], and for a single head [B,S,D]. Raises NoMatch where
    such a context does not become [B,S,H*D].
    """
    current, chain = start, list[tuple[gs.Node, gs.Tensor]]()
    for _ in range(_MOST_MOVEMENTS):
        shape = analysis[current].shape
        whole = _is_tokens(analysis, current) and shape is not None and shape[2].constant() == heads * size
        if whole and (chain or heads == 1):
            _check_context(analysis, chain, heads, size, current, by_head)
            return current
        readers = [node for node in current.outputs if is_standard(node, "Transpose", *RESHAPES)]
        if len(readers) != 1:
            break
        chain.append((readers[0], readers[0].outputs[0]))
        current = readers[0].outputs[0]
    if analysis[start].shape == (B, Poly.of(heads), S, Poly.of(size)):
        return start
    raise NoMatch(f"the context '{start.name}' is not put together as [batch, sequence, heads * size]")


def _check_context(
    analysis: Analysis,
    chain: list[tuple[gs.Node, gs.Tensor]],
    heads: int,
    size: int,
    target: gs.Tensor,
    by_head: bool,
) -> None:
    for batch, length in _SIZES:
        expected = np.arange(batch * length * heads * size).reshape(batch, length, heads, size)
        values = expected.transpose(0, 2, 1, 3)
        first = analysis[chain[0][0].inputs[0] if chain else target].shape
        if first is not None and len(first) == 3:
            values = (values.swapaxes(0, 1) if by_head else values).reshape(batch * heads, length, size)
        for node, output in chain:
            values = _follow(analysis, node, output, values, {"B": batch, "S": length})
        if not np.array_equal(values, expected.reshape(batch, length, heads * size)):
            raise NoMatch(f"the context becomes '{target.name}' in another order than [batch, sequence, head, size]")
