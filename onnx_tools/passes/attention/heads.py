# SPDX-License-Identifier: Apache-2.0
"""Follows Q, K, V and the context through reshapes and transposes, and proves which column each element comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis.graph import is_standard, made_by, node_name
from ...analysis.layout import token_axis
from ...analysis.symbolic import Analysis, Poly
from ...analysis.symbolic.rules import slice_arguments, split_sizes
from ..base import NoMatch

MOVEMENTS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Split", "Slice", "Gather", "Identity")
_SIZES = ((2, 3), (3, 5))  # B, S to try movements with; two pairs tell B, S and constants apart


@dataclass(frozen=True)
class HeadsSource:
    """A tensor [B,S,N] and the column that each head's element is read from.

    Where heads are worked on before the scores, as rotary embeddings do it, there is no such tensor: then `order` is
    the permutation that makes [B,S,H,D] of the tensor, and N is H*D. `by_head`: heads are [H*B,S,D] and not [B*H,S,D].
    """

    tensor: gs.Tensor
    columns: np.ndarray  # [H,D]
    factor: float
    order: tuple[int, ...] | None = None
    by_head: bool = False


def trace_heads(analysis: Analysis, tensor: gs.Tensor, what: str, *, transposed: bool = False) -> HeadsSource:
    """Where Q, K or V [B,H,S,D] (transposed: [B,H,D,S]) comes from; with batch and heads merged, in either order.

    Raises NoMatch with the reason.
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
        node = made_by(current, *MOVEMENTS)
        if node is None:
            break
        if not is_standard(node, "Identity"):
            chain.append((node, current))
        current = node.inputs[0]
    found = best or split
    if found is None:
        made = current.inputs[0].op if current.inputs else "input"
        raise NoMatch(f"{what} is no [batch, sequence, hidden] tensor split into heads: it comes from {made}")
    source, length, total = found
    moves, order = chain[:length][::-1], _order(analysis, source) if best is None else None
    try:
        columns, by_head = _columns(analysis, source, moves, tensor, what, transposed, False), False
    except NoMatch:
        if analysis[tensor].rank != 3:
            raise
        columns, by_head = _columns(analysis, source, moves, tensor, what, transposed, True), True
    return HeadsSource(source, columns, total, order, by_head)


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
    transposed: bool,
    by_head: bool,
) -> np.ndarray:
    shape, order = analysis[source].shape or (), _order(analysis, source)
    sizes = [shape[axis].constant() or 0 for axis in (order[2:] if order is not None else (2,))]
    width = int(np.prod(sizes))
    found: np.ndarray | None = None
    for batch, length in _SIZES:
        values = np.arange(batch * length * width).reshape(batch, length, *sizes)
        if order is not None:
            values = values.transpose(order)  # its own inverse
        for node, output in moves:
            values = _moved(analysis, node, output, values, {"B": batch, "S": length})
        values = _as_heads(values, batch, what, target, by_head)
        if transposed:
            values = values.transpose(0, 1, 3, 2)
        if values.shape[0] != batch or values.shape[2] != length:
            raise NoMatch(f"{what} has the shape {values.shape} for B={batch}, S={length}, not [B, heads, S, size]")
        columns = values[0, :, 0, :]
        tokens = np.arange(batch * length).reshape(batch, 1, length, 1) * width
        if columns.max(initial=0) >= width or not np.array_equal(values, tokens + columns[None, :, None, :]):
            raise NoMatch(f"{what} mixes tokens: its reshapes and transposes move elements between positions")
        if found is not None and not np.array_equal(found, columns):
            raise NoMatch(f"{what} reads other columns for other sizes of the batch")
        found = columns
    if found is None:
        raise NoMatch(f"{what} is empty")
    return found


def _as_heads(values: np.ndarray, batch: int, what: str, target: gs.Tensor, by_head: bool) -> np.ndarray:
    if values.ndim == 3 and values.shape[0] % batch == 0:
        if by_head:
            apart: np.ndarray = values.reshape(values.shape[0] // batch, batch, *values.shape[1:]).swapaxes(0, 1)
            return apart
        return values.reshape(batch, values.shape[0] // batch, *values.shape[1:])
    if values.ndim != 4:
        raise NoMatch(f"{what} ('{target.name}') has {values.ndim} axes, not [batch, heads, sequence, size]")
    return values


def _moved(
    analysis: Analysis, node: gs.Node, output: gs.Tensor, values: np.ndarray, sizes: dict[str, int]
) -> np.ndarray:
    known = [analysis[tensor] for tensor in node.inputs]

    def number(poly: Poly) -> int:
        try:
            return poly.evaluate(lambda name: sizes[name])
        except (KeyError, ValueError):
            raise NoMatch(f"'{node_name(node)}' ({node.op}) depends on the unknown size {poly}") from None

    if node.op == "Transpose":
        moved: np.ndarray = values.transpose(node.attrs.get("perm"))
        return moved
    if node.op in ("Reshape", "Squeeze", "Unsqueeze"):
        shape = analysis[output].shape
        if shape is None:
            raise NoMatch(f"the shape that '{node_name(node)}' ({node.op}) makes is not known")
        return values.reshape([number(size) for size in shape])
    if node.op == "Split":
        parts = split_sizes(node, known)
        if parts is None:
            raise NoMatch(f"'{node_name(node)}' (Split) has no known sizes")
        position = next(i for i, item in enumerate(node.outputs) if item is output)
        ends = np.cumsum(parts)
        piece = np.arange(ends[position] - parts[position], ends[position])
        return np.take(values, piece, axis=int(node.attrs.get("axis", 0)))
    if node.op == "Slice":
        limits = slice_arguments(node, known)
        if limits is None:
            raise NoMatch(f"'{node_name(node)}' (Slice) has no known limits")
        index = [slice(None)] * values.ndim
        for start, end, axis, step in zip(*limits, strict=True):
            index[axis] = slice(number(start), number(end), step)
        return values[tuple(index)]
    picked = known[1].plain_integers()
    if picked is None:
        raise NoMatch(f"'{node_name(node)}' ({node.op}) has no known indices")
    rank = known[1].rank
    return np.take(values, picked[0] if rank == 0 else picked, axis=int(node.attrs.get("axis", 0)))


def follow_context(analysis: Analysis, start: gs.Tensor, heads: int, size: int, *, by_head: bool = False) -> gs.Tensor:
    """The tensor [B,S,H*D] that the context [B,H,S,D] becomes. Raises NoMatch where it does not.

    The context may be [B*H,S,D], with `by_head` [H*B,S,D], and of one head [B,S,D].
    """
    current, chain = start, list[tuple[gs.Node, gs.Tensor]]()
    for _ in range(8):
        shape = analysis[current].shape
        whole = _is_tokens(analysis, current) and shape is not None and shape[2].constant() == heads * size
        if whole and (chain or heads == 1):
            _check_context(analysis, chain, heads, size, current, by_head)
            return current
        readers = [node for node in current.outputs if is_standard(node, *MOVEMENTS[:4])]
        if len(readers) != 1:
            break
        chain.append((readers[0], readers[0].outputs[0]))
        current = readers[0].outputs[0]
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
            values = _moved(analysis, node, output, values, {"B": batch, "S": length})
        if not np.array_equal(values, expected.reshape(batch, length, heads * size)):
            raise NoMatch(f"the context becomes '{target.name}' in another order than [batch, sequence, head, size]")
