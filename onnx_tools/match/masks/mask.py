# SPDX-License-Identifier: Apache-2.0
"""Proves that what is added to attention scores, or selects among them, masks padding and does nothing else."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ...analysis.symbolic import (
    Apply,
    Axis,
    Element,
    Expr,
    Facts,
    Index,
    Poly,
    RowSum,
    Shape,
    apply,
    axes_of,
    broadcast_expr,
    evaluate,
    leaves,
    leaves_of,
    number,
    replace_element,
    uncast,
)
from ...analysis.symbolic.bounds import Values, bounds
from .. import NoMatch
from ..positions import DISTANCE, at_distance, by_distance
from ..values import ALL, Domain, Keeping, Window, domain_of, is_binary, keeping, tried_distances, window_of

# exp(-1000) is 0 in every type, whatever the scores of a trained model are.
VERY_NEGATIVE = -1000.0
# Whether a key is kept where this holds between its position and a length (Less, GreaterOrEqual), or between a length
# and its position (Greater, LessOrEqual).
_ORDERS = MappingProxyType({"Less": True, "Greater": True, "GreaterOrEqual": False, "LessOrEqual": False})
_AXIS_NAMES = ("sequence of the batch", "head", "query position", "key position")


@dataclass(frozen=True)
class MaskUse:
    """A tensor that masks the scores: added to them (times `factor`), or selecting them where it equals `keeps`.

    `factor` is below 0 where it is subtracted.
    """

    facts: Facts
    kind: str  # "add" or "select"
    factor: float = 1.0
    keeps: bool = True
    masked_value: float = -np.inf  # what "select" puts in place of masked scores


@dataclass(frozen=True)
class PaddingMask:
    """The mask input [B,S] and which of its values keep a key; `by_length`: scores see the number of kept keys alone.

    `keeps` is None where attention has no mask: it reads every slot. `window` says which of those keys a query sees.
    """

    keeps: Keeping | None
    by_length: bool = False
    window: Window = ALL


Truths = npt.NDArray[np.bool_]
TableRows = Mapping[str, int | None]  # by input: the rows of the table that its values choose from


def prove(uses: list[MaskUse], scores: Shape, node: str, rows: TableRows) -> PaddingMask:
    """The mask input, where every use keeps exactly the keys that its values keep. Raises NoMatch.

    A use by length keeps the same number of keys, from the first on: the same keys where the mask is right-padded.
    """
    proofs = {prove_one(use, scores, node, rows) for use in uses}
    masks = [mask for mask in proofs if mask.keeps is not None]
    rules = sorted({str(mask.keeps) for mask in masks})
    if len(rules) > 1:
        raise NoMatch(f"masks of node '{node}' are several: {', '.join(rules)}")
    window = functools.reduce(operator.and_, (mask.window for mask in proofs), ALL)
    return PaddingMask(masks[0].keeps if masks else None, any(mask.by_length for mask in masks), window)


def prove_one(use: MaskUse, scores: Shape, node: str, rows: TableRows) -> PaddingMask:
    """What one use keeps. Raises NoMatch."""
    prefix = f"mask of node '{node}' is not a plain padding mask because"
    expr = broadcast_expr(use.facts, scores)
    if expr is None:
        raise NoMatch(f"{prefix} it cannot be followed back to a [batch, sequence] input; it may be a bias by position")
    slots = _slots_of_lengths(expr)
    by_length, expr = slots != expr, slots
    if not any(isinstance(leaf, Element | RowSum) for leaf in leaves(expr)) and _keeps_all(use, expr):
        return PaddingMask(None)
    apart = by_distance(expr, 2, 3)
    if use.kind == "select" and not use.masked_value * use.factor <= VERY_NEGATIVE:
        raise NoMatch(f"{prefix} masked scores become {use.masked_value}, not below {VERY_NEGATIVE}")
    if apart is None or DISTANCE not in leaves(apart):
        return PaddingMask(_rule_of_pairs(use, expr, prefix, rows), by_length)
    window = _window(use, apart, prefix)
    own = at_distance(apart, 0)
    elements = bool(leaves_of(own, Element))
    return PaddingMask(_padding_rule(use, own, prefix, rows) if elements else None, by_length, window)


def _keeps_all(use: MaskUse, expr: Expr) -> bool:
    """Whether a mask that reads no input keeps every key: what exporters make of a model that was given none."""
    if axes_of(expr):
        return False
    try:
        value = np.atleast_1d(evaluate(expr, {}))
    except ValueError:  # it depends on a size
        return False
    return bool(_states(use, value, value)[0].all())


def _rule_of_pairs(use: MaskUse, expr: Expr, prefix: str, rows: TableRows) -> Keeping:
    """The rule of an expression that may read the query's slot, too; what it does for queries of padding is ignored."""
    key, query = (Poly.atom(Axis(0)), Poly.atom(Axis(3))), (Poly.atom(Axis(0)), Poly.atom(Axis(2)))
    pairs = [leaf for leaf in leaves_of(expr, Element) if leaf.indices == query]
    own, at_tokens = expr, expr
    for item in pairs:
        own = replace_element(own, item, Element(item.source, key, item.dtype))
    rule = _padding_rule(use, own, prefix, rows)
    if not pairs:
        return rule
    for item in pairs:
        at_tokens = replace_element(at_tokens, item, number(int(rule.form == "nonzero"), item.dtype))
    if not rule.plain or _padding_rule(use, at_tokens, prefix, rows) != rule:
        raise NoMatch(f"{prefix} what it keeps for a query that is no padding is not known")
    return rule


def _padding_rule(use: MaskUse, expr: Expr, prefix: str, rows: TableRows) -> Keeping:
    """Which values of one input keep a key, by an expression that reads nothing else. Raises NoMatch."""
    element = _only_element(expr, prefix)
    domain = domain_of(element.dtype, rows.get(element.source), [expr])
    low, high = bounds(expr, {element: domain.values})
    at_tokens, masked = _states(use, low, high)
    size = domain.values.shape
    try:
        wide = np.broadcast_to(at_tokens, size), np.broadcast_to(masked, size)
        return keeping(element.source, domain, *wide, is_binary(expr, element))
    except NoMatch as reason:
        ending = "" if domain.complete else _said_of_two(use, low, domain)
        raise NoMatch(f"{prefix} {ending or reason}") from None


def _states(use: MaskUse, low: Values, high: Values) -> tuple[Truths, Truths]:
    """Where a mask between these bounds keeps keys, and where it masks them."""
    if use.kind == "select":
        return (low > 0) == use.keeps, (high > 0) != use.keeps
    return low == 0, np.maximum(low * use.factor, high * use.factor) <= VERY_NEGATIVE


def _window(use: MaskUse, expr: Expr, prefix: str) -> Window:
    """The window of an expression of the distance and of at most one element of an input. Raises NoMatch."""
    elements = [leaf for leaf in leaves_of(expr, Element) if leaf != DISTANCE]
    if len(elements) > 1:
        raise NoMatch(f"{prefix} it depends on the distance and on {len(elements)} elements of inputs")
    distances = tried_distances()
    values = np.zeros(1, np.int64)
    if elements:
        own = at_distance(expr, 0)
        values = domain_of(elements[0].dtype, 2 if is_binary(own, elements[0]) else None, [own]).values
    distances_by_element = {
        element: np.broadcast_to(values[:, None], (len(values), len(distances))) for element in elements
    }
    distances_by_element[DISTANCE] = np.broadcast_to(distances, (len(values), len(distances)))
    states = _states(use, *bounds(expr, distances_by_element))
    try:
        return window_of(distances, *(np.broadcast_to(state, distances_by_element[DISTANCE].shape) for state in states))
    except NoMatch as reason:
        raise NoMatch(f"{prefix} {reason}") from None


def _said_of_two(use: MaskUse, values: np.ndarray, domain: Domain) -> str:
    """Why a mask is no padding mask: what it does where its values are 1 and 0."""
    wide = np.broadcast_to(values, domain.values.shape)
    at_tokens, masked = (float(wide[domain.values == number][0]) for number in (1, 0))
    if use.kind == "select":
        return f"it selects kept keys = {bool(at_tokens)}, masked keys = {bool(masked)}"
    if at_tokens != 0.0 and masked != 0.0:
        return f"it adds {at_tokens} to the scores of kept keys"
    return f"it adds {masked if at_tokens == 0.0 else at_tokens} to masked scores, which is not below {VERY_NEGATIVE}"


def _slots_of_lengths(expr: Expr) -> Expr:
    """The expression with the mask's own slot instead of `key position < sum of the mask's row`."""
    if not isinstance(expr, Apply):
        return expr
    if expr.op in _ORDERS:
        key, total = (uncast(arg) for arg in (expr.args if expr.op in ("Less", "GreaterOrEqual") else expr.args[::-1]))
        own_row = isinstance(total, RowSum) and total.row == Poly.atom(Axis(0))
        if isinstance(total, RowSum) and own_row and isinstance(key, Index) and key.poly == Poly.atom(Axis(3)):
            slot = Element(total.source, (total.row, key.poly), total.dtype)
            is_token = apply("Cast", (slot,), "bool")
            return is_token if _ORDERS[expr.op] else apply("Not", (is_token,), "bool")
    return apply(expr.op, tuple(_slots_of_lengths(arg) for arg in expr.args), expr.dtype)


def _only_element(expr: Expr, prefix: str) -> Element:
    identity = (Poly.atom(Axis(0)), Poly.atom(Axis(3)))
    elements: set[Element] = set()
    indices = [leaf for leaf in leaves_of(expr, Index) if leaf.poly.constant() is None]
    if indices:
        axes = set().union(*(leaf.poly.axes() for leaf in indices))
        first = next((axis for axis in (2, 1, 0, 3) if axis in axes), None)
        what = f"the size {indices[0].poly}" if first is None else f"the {_AXIS_NAMES[first]}"
        raise NoMatch(f"{prefix} it depends on {what}")
    for leaf in leaves(expr):
        if isinstance(leaf, RowSum):
            raise NoMatch(f"{prefix} it depends on the sum of '{leaf.source}' otherwise than as a number of keys")
        if isinstance(leaf, Element):
            if leaf.indices != identity:
                where = ", ".join(str(index) for index in leaf.indices)
                raise NoMatch(f"{prefix} it reads {leaf.source}[{where}] instead of the key's [i0, i3]")
            elements.add(leaf)
    if len(elements) != 1:
        names = ", ".join(sorted(item.source for item in elements)) or "none"
        raise NoMatch(f"{prefix} it depends on {len(elements)} inputs ({names}) where one mask is expected")
    return elements.pop()
