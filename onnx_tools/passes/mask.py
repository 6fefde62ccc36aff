# SPDX-License-Identifier: Apache-2.0
"""Proves that what is added to attention scores, or selects among them, is a plain padding mask and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..symbolic import Apply, Axis, Element, Expr, Index, Poly, RowSum, evaluate
from ..symbolic.expr import apply, leaves
from ..symbolic.facts import Facts, Shape, broadcast_expr
from .base import NoMatch

# exp(-1000) is 0 in every type, whatever the scores of a trained model are.
VERY_NEGATIVE = -1000.0
# Comparisons of a key's position with a length, or (the second and fourth) the other way round: whether they keep it.
_ORDERS = MappingProxyType({"Less": True, "Greater": True, "GreaterOrEqual": False, "LessOrEqual": False})
_AXIS_NAMES = ("sequence of the batch", "head", "query position", "key position")


@dataclass(frozen=True)
class MaskUse:
    """A tensor that masks the scores: added to them (times `factor`), or choosing them where it is `keeps`."""

    facts: Facts
    kind: str  # "add" or "select"
    factor: float = 1.0
    keeps: bool = True
    masked_value: float = -np.inf  # of "select"


@dataclass(frozen=True)
class PaddingMask:
    """The mask input [B,S]; `by_length`: of it, the scores see the number of kept tokens alone."""

    source: str
    by_length: bool


def prove(uses: list[MaskUse], scores: Shape, node: str) -> PaddingMask:
    """The mask input, where every use keeps exactly the keys whose mask is not 0. Raises NoMatch.

    A use by length keeps as many keys from the first on: the same keys, where the mask is right-padded.
    """
    found = {_prove_one(use, scores, node) for use in uses}
    names = sorted({mask.source for mask in found})
    if not found:
        raise NoMatch(f"no mask reaches node '{node}': it reads padding")
    if len(names) > 1:
        raise NoMatch(f"masks of node '{node}' come from several inputs: {', '.join(names)}")
    return PaddingMask(names[0], any(mask.by_length for mask in found))


def _prove_one(use: MaskUse, scores: Shape, node: str) -> PaddingMask:
    prefix = f"mask of node '{node}' is not a plain padding mask because"
    expr = broadcast_expr(use.facts, scores)
    if expr is None:
        raise NoMatch(f"{prefix} it cannot be followed back to a [batch, sequence] input: a bias by position, for one")
    slots = _slots_of_lengths(expr)
    by_length, expr = slots != expr, slots
    element = _only_element(expr, prefix)
    kept, masked = (evaluate(expr, {element: value}) for value in (1, 0))
    if use.kind == "select":
        if bool(kept) != use.keeps or bool(masked) == use.keeps:
            raise NoMatch(f"{prefix} it selects kept keys = {bool(kept)}, masked keys = {bool(masked)}")
        value = use.masked_value * use.factor
        if not value <= VERY_NEGATIVE:
            raise NoMatch(f"{prefix} masked scores become {use.masked_value}, not below {VERY_NEGATIVE}")
        return PaddingMask(element.source, by_length)
    if float(kept) != 0.0:
        raise NoMatch(f"{prefix} it adds {float(kept)} to the scores of kept keys")
    if not float(masked) * use.factor <= VERY_NEGATIVE:
        raise NoMatch(f"{prefix} it adds {float(masked)} to masked scores, which is not below {VERY_NEGATIVE}")
    return PaddingMask(element.source, by_length)


def _slots_of_lengths(expr: Expr) -> Expr:
    """The expression with the mask's own slot in the place of `key position < sum of the mask's row`."""
    if not isinstance(expr, Apply):
        return expr
    if expr.op in _ORDERS:
        key, total = (_inner(arg) for arg in (expr.args if expr.op in ("Less", "GreaterOrEqual") else expr.args[::-1]))
        own_row = isinstance(total, RowSum) and total.row == Poly.atom(Axis(0))
        if isinstance(total, RowSum) and own_row and isinstance(key, Index) and key.poly == Poly.atom(Axis(3)):
            slot = Element(total.source, (total.row, key.poly), total.dtype)
            kept = apply("Cast", (slot,), "bool")
            return kept if _ORDERS[expr.op] else apply("Not", (kept,), "bool")
    return apply(expr.op, tuple(_slots_of_lengths(arg) for arg in expr.args), expr.dtype)


def _inner(expr: Expr) -> Expr:
    """The expression before casts."""
    return _inner(expr.args[0]) if isinstance(expr, Apply) and expr.op == "Cast" else expr


def _only_element(expr: Expr, prefix: str) -> Element:
    wanted = (Poly.atom(Axis(0)), Poly.atom(Axis(3)))
    found: set[Element] = set()
    indices = [leaf for leaf in leaves(expr) if isinstance(leaf, Index) and leaf.poly.constant() is None]
    if indices:
        axes = set().union(*(leaf.poly.axes() for leaf in indices))
        first = next((axis for axis in (2, 1, 0, 3) if axis in axes), None)
        what = f"the size {indices[0].poly}" if first is None else f"the {_AXIS_NAMES[first]}"
        raise NoMatch(f"{prefix} it depends on {what}")
    for leaf in leaves(expr):
        if isinstance(leaf, RowSum):
            raise NoMatch(f"{prefix} it depends on the sum of '{leaf.source}' otherwise than as a number of keys")
        if isinstance(leaf, Element):
            if leaf.indices != wanted:
                where = ", ".join(str(index) for index in leaf.indices)
                raise NoMatch(f"{prefix} it reads {leaf.source}[{where}] instead of the key's [i0, i3]")
            found.add(leaf)
    if len(found) != 1:
        names = ", ".join(sorted(item.source for item in found)) or "none"
        raise NoMatch(f"{prefix} it depends on {len(found)} inputs ({names}) where one mask is expected")
    return found.pop()


def is_mask_element(analysis_facts: Facts, mask: str, axes: tuple[int, int], rank: int, kept: int = 1) -> bool:
    """Whether a tensor is `kept` where the mask is 1 and 1 - `kept` where it is 0, by batch and sequence axes alone."""
    expr = analysis_facts.expr
    if expr is None or analysis_facts.rank != rank:
        return False
    found = [leaf for leaf in leaves(expr) if isinstance(leaf, Element)]
    wanted = (Poly.atom(Axis(axes[0])), Poly.atom(Axis(axes[1])))
    if len(found) != 1 or found[0].source != mask or found[0].indices != wanted:
        return False
    if any(
        isinstance(leaf, RowSum) or (isinstance(leaf, Index) and leaf.poly.constant() is None) for leaf in leaves(expr)
    ):
        return False
    values = [float(evaluate(expr, {found[0]: value})) for value in (1, 0)]
    return values == [float(kept), float(1 - kept)]
