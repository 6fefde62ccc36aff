# SPDX-License-Identifier: Apache-2.0
"""Proves that what is added to attention scores, or selects among them, masks padding and does nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ...analysis.symbolic import Apply, Axis, Element, Expr, Index, Poly, RowSum
from ...analysis.symbolic.bounds import bounds
from ...analysis.symbolic.expr import apply, leaves
from ...analysis.symbolic.facts import Facts, Shape, broadcast_expr
from ..base import NoMatch
from .mask_values import Domain, Keeping, domain_of, is_binary, keeping

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
    """The mask input [B,S] and which of its values keep a key; `by_length`: scores see the number of kept keys alone.

    `keeps` is None where attention has no mask: it reads every slot.
    """

    keeps: Keeping | None
    by_length: bool = False


Rows = Mapping[str, int | None]  # by input: the rows of the table that its values choose from


def prove(uses: list[MaskUse], scores: Shape, node: str, rows: Rows) -> PaddingMask:
    """The mask input, where every use keeps exactly the keys that its values keep. Raises NoMatch.

    A use by length keeps as many keys from the first on: the same keys, where the mask is right-padded.
    """
    found = {_prove_one(use, scores, node, rows) for use in uses}
    if not found:
        return PaddingMask(None)
    rules = sorted({str(mask.keeps) for mask in found})
    if len(rules) > 1:
        raise NoMatch(f"masks of node '{node}' are several: {', '.join(rules)}")
    return PaddingMask(next(iter(found)).keeps, any(mask.by_length for mask in found))


def _prove_one(use: MaskUse, scores: Shape, node: str, rows: Rows) -> PaddingMask:
    prefix = f"mask of node '{node}' is not a plain padding mask because"
    expr = broadcast_expr(use.facts, scores)
    if expr is None:
        raise NoMatch(f"{prefix} it cannot be followed back to a [batch, sequence] input: a bias by position, for one")
    slots = _slots_of_lengths(expr)
    by_length, expr = slots != expr, slots
    element = _only_element(expr, prefix)
    domain = domain_of(element.dtype, rows.get(element.source), [expr])
    low, high = bounds(expr, {element: domain.values})
    if use.kind == "select":
        kept, masked = (low > 0) == use.keeps, (high > 0) != use.keeps
        value = use.masked_value * use.factor
        if not value <= VERY_NEGATIVE:
            raise NoMatch(f"{prefix} masked scores become {use.masked_value}, not below {VERY_NEGATIVE}")
    else:
        kept, masked = low == 0, high * use.factor <= VERY_NEGATIVE
    size = domain.values.shape
    try:
        wide = np.broadcast_to(kept, size), np.broadcast_to(masked, size)
        rule = keeping(element.source, domain, *wide, is_binary(expr, element))
    except NoMatch as reason:
        said = "" if domain.complete else _said_of_two(use, low, domain)
        raise NoMatch(f"{prefix} {said or reason}") from None
    return PaddingMask(rule, by_length)


def _said_of_two(use: MaskUse, values: np.ndarray, domain: Domain) -> str:
    """What a mask does instead where its values are 1 and 0."""
    wide = np.broadcast_to(values, domain.values.shape)
    kept, masked = (float(wide[domain.values == number][0]) for number in (1, 0))
    if use.kind == "select":
        return f"it selects kept keys = {bool(kept)}, masked keys = {bool(masked)}"
    if kept != 0.0 and masked != 0.0:
        return f"it adds {kept} to the scores of kept keys"
    return f"it adds {masked if kept == 0.0 else kept} to masked scores, which is not below {VERY_NEGATIVE}"


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
