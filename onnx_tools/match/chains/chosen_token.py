# SPDX-License-Identifier: Apache-2.0
"""The first or the last kept token of every sequence, where its position is computed and then gathered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import RESHAPES, B, Movement, S, is_standard, is_token_shape, made_by, moving, producer
from ...analysis.symbolic import (
    Analysis,
    Apply,
    Element,
    Expr,
    Facts,
    Index,
    Number,
    Poly,
    RowSum,
    axis_index,
    axis_of,
    evaluate,
    is_constant,
    leaves_of,
    uncast,
)
from ..values import Mask

_MOVEMENTS = moving(Movement.SAME, Movement.VIEW, Movement.REPEATED, Movement.CONVERTED)
_LENGTHS = (1, 2, 3, 5, 8)  # for which formulas of the length are tried


@dataclass(frozen=True)
class ChosenToken:
    """One token of every row of `x` [B,S,E]: the "first" or the "last" kept one.

    `by_count`: its slot is 0 or the number of tokens less one, and holds that token only where masks are right-padded.
    """

    x: gs.Tensor
    mode: str
    by_count: bool


def chosen_token(analysis: Analysis, node: gs.Node, mask: Mask) -> ChosenToken | None:
    """What a Gather, GatherElements or GatherND takes from the tokens; None where that is something else."""
    rows_of_slots = _rows_of_slots(analysis, node)
    if (
        rows_of_slots is None
        or not is_token_shape(analysis[rows_of_slots[0]].shape)
        or analysis[rows_of_slots[0]].rank != 3
    ):
        return None
    return _token_at(analysis, *rows_of_slots, mask)


def _rows_of_slots(analysis: Analysis, node: gs.Node) -> tuple[gs.Tensor, gs.Tensor] | None:
    """The tokens, and the tensor of the slot that a node takes from every row of them; None for other nodes."""
    if is_standard(node, "GatherElements") and analysis.axes_along(node) == [1]:
        shape = analysis[node.inputs[1]].shape
        whole = analysis[node.inputs[0]].shape
        slots = _vector(analysis, node.inputs[1])
        if slots is not None and shape is not None and whole is not None and shape[1].constant() == 1:
            return (node.inputs[0], slots) if (shape[0], *shape[2:]) == (whole[0], *whole[2:]) else None
    if is_standard(node, "GatherND"):
        return _by_pairs(analysis, node)
    if is_standard(node, "Gather") and axis_of(node, analysis[node.inputs[0]].rank) == 0:
        return _from_rows(analysis, node)
    return None


def _vector(analysis: Analysis, tensor: gs.Tensor) -> gs.Tensor | None:
    """The tensor of B elements that a tensor repeats: itself where it has no more; None where it repeats none."""
    for _ in range(12):
        sizes = [size for size in analysis[tensor].shape or () if size.constant() != 1]
        if sizes == [B]:
            return tensor
        node = made_by(tensor, *_MOVEMENTS)
        if node is None or not sizes or sizes[0] != B or not _repeats_inside(analysis, node):
            return None
        tensor = node.inputs[0]
    return None


def _repeats_inside(analysis: Analysis, node: gs.Node) -> bool:
    """Whether a movement keeps the batch in front, so that elements of one row stay together."""
    sizes = [size for size in analysis[node.inputs[0]].shape or () if size.constant() != 1]
    return bool(sizes) and sizes[0] == B


def _by_pairs(analysis: Analysis, node: gs.Node) -> tuple[gs.Tensor, gs.Tensor] | None:
    """The tokens and the slots of a GatherND by (row, slot), or by a slot for every row; None for others."""
    x, indices = node.inputs
    shape = analysis[indices].shape or ()
    if int(node.attrs.get("batch_dims", 0)) == 1 and shape == (B, Poly.of(1)):
        return x, indices
    pair = made_by(indices, "Concat")
    if int(node.attrs.get("batch_dims", 0)) or pair is None or shape != (B, Poly.of(2)) or len(pair.inputs) != 2:
        return None
    return (x, pair.inputs[1]) if _counts_rows(analysis[pair.inputs[0]], Poly.of(1)) else None


def _counts_rows(facts: Facts, step: Poly) -> bool:
    """Whether a tensor of B elements is 0, step, 2 step, ..."""
    axes = [axis for axis, size in enumerate(facts.shape or ()) if size == B]
    return isinstance(facts.expr, Index) and len(axes) == 1 and facts.expr.poly == axis_index(axes[0]) * step


def _from_rows(analysis: Analysis, node: gs.Node) -> tuple[gs.Tensor, gs.Tensor] | None:
    """The tokens and the slots of a Gather of rows slot + row * S from the tokens as [B*S,E]; None for others."""
    flat, total = made_by(node.inputs[0], *RESHAPES), made_by(node.inputs[1], "Add")
    rows = analysis[node.inputs[0]].shape
    if flat is None or total is None or rows is None or len(rows) != 2 or rows[0] != B * S:
        return None
    for this, other in ((0, 1), (1, 0)):
        if _counts_rows(analysis[total.inputs[this]], S):
            return flat.inputs[0], total.inputs[other]
    return None


def _token_at(analysis: Analysis, x: gs.Tensor, slots: gs.Tensor, mask: Mask) -> ChosenToken | None:
    """Which kept token lies at `slots`, a tensor of B elements; None where that is not known."""
    expr = analysis[slots].expr
    if isinstance(expr, Index) and expr.poly.constant() == 0:
        return ChosenToken(x, "first", True)
    if expr is not None and _is_last(expr, mask):
        return ChosenToken(x, "last", True)
    sign, rest, search = _search(analysis, slots)
    if search is None:
        return None
    values, last = analysis[search.inputs[0]], bool(search.attrs.get("select_last_index", 0))
    along = analysis.axes_along(search) == [1] and values.rank == 2
    if not along or values.expr is None:
        return None
    if sign == 1 and rest.constant() == 0:
        mode = "last" if last else "first"
        if mask.source is None and is_constant(values.expr):
            return ChosenToken(x, mode, False)
        if _favours_tokens(values.expr, mask, axis_index(1)):
            return ChosenToken(x, mode, False)
        return ChosenToken(x, "last", False) if not last and _grows(values.expr, mask) else None
    if sign == -1 and rest == S - 1 and not last and _favours_tokens(values.expr, mask, S - 1 - axis_index(1)):
        return ChosenToken(x, "last", False)
    return None


def _is_last(expr: Expr, mask: Mask) -> bool:
    """Whether an expression of the number n of kept tokens is n - 1."""
    sums = leaves_of(expr, RowSum)
    if len(sums) != 1 or mask.source is None or not mask.plain or mask.kept_values != (1,):
        return False
    total = sums.pop()
    if total.source != mask.source or len(total.row.atoms()) != 1:
        return False
    try:
        return all(int(evaluate(_with_number(expr, total, n), {})) == n - 1 for n in _LENGTHS)
    except (KeyError, ValueError):
        return False


def _with_number(expr: Expr, total: RowSum, number: int) -> Expr:
    """The expression with a number instead of the sum."""
    if expr == total:
        return Index(Poly.of(number), total.dtype) if total.dtype.startswith("int") else Number(number, total.dtype)
    if isinstance(expr, Apply):
        return Apply(expr.op, tuple(_with_number(arg, total, number) for arg in expr.args), expr.dtype)
    return expr


def _search(analysis: Analysis, slots: gs.Tensor) -> tuple[int, Poly, gs.Node | None]:
    """The sign, the rest and the ArgMax node of slots that are sign * ArgMax + rest; no node where they are not."""
    sign, rest, tensor = 1, Poly(), slots
    for _ in range(16):
        node = producer(tensor)
        if node is None:
            break
        if is_standard(node, "ArgMax"):
            return sign, rest, node
        if is_standard(node, *_MOVEMENTS):
            tensor = node.inputs[0]
            continue
        if not is_standard(node, "Add", "Sub"):
            break
        numbers = [_plain(analysis[item].uniform()) for item in node.inputs]
        if numbers[1] is not None:
            rest = rest + numbers[1] * (sign if node.op == "Add" else -sign)
            tensor = node.inputs[0]
        elif numbers[0] is not None:
            rest = rest + numbers[0] * sign
            sign = sign if node.op == "Add" else -sign
            tensor = node.inputs[1]
        else:
            break
    return sign, rest, None


def _plain(expr: Expr | None) -> Poly | None:
    expr = uncast(expr)
    return expr.poly if isinstance(expr, Index) else None


def _favours_tokens(expr: Expr, mask: Mask, slot: Poly) -> bool:
    """Whether an expression of the mask at `slot` alone is larger where that slot is kept."""
    both = mask.outcomes(expr, ("i0", str(slot)))
    return both is not None and both[0] > both[1]


def _grows(expr: Expr, mask: Mask) -> bool:
    """Whether an expression of the mask's own slot and position grows along kept slots, and is largest at these."""
    elements = leaves_of(expr, Element)
    if len(elements) != 1 or mask.source is None or not mask.plain:
        return False
    element = elements.pop()
    if element.source != mask.source or element.indices != (axis_index(0), axis_index(1)):
        return False
    try:
        at_tokens, masked = (
            [float(evaluate(_at(expr, index), {element: value})) for index in range(max(_LENGTHS))]
            for value in (mask.kept_values[0], mask.masked[0])
        )
    except (KeyError, ValueError, IndexError):
        return False
    return bool(np.all(np.diff(at_tokens) > 0)) and max(masked) <= at_tokens[0]


def _at(expr: Expr, index: int) -> Expr:
    """The expression with `index` in place of the position along the sequence."""
    if isinstance(expr, Index):
        values = {axis: Poly.of(index) for axis in axis_index(1).atoms()}
        return Index(expr.poly.substitute(values, {}), expr.dtype)
    if isinstance(expr, Apply):
        return Apply(expr.op, tuple(_at(arg, index) for arg in expr.args), expr.dtype)
    return expr
