# SPDX-License-Identifier: Apache-2.0
"""Bounds of an expression, given the values of some elements of graph inputs while others are unknown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from .expr import ELEMENTWISE, Apply, Element, Expr, Index, Number, RowSum, apply
from .poly import Poly

Values = npt.NDArray[np.float64]
Bounds = tuple[Values, Values]

# No position, size, id or sum of a mask is larger.
LARGEST = float(1 << 24)
_MOST_CASES = 4  # comparisons of positions that are tried both ways
_ORDERS = MappingProxyType(  # whether the first operand is the larger one, and whether they must differ
    {"Greater": (True, True), "GreaterOrEqual": (True, False), "Less": (False, True), "LessOrEqual": (False, False)}
)


def bounds(expr: Expr, elements: Mapping[Element, npt.NDArray[Any]]) -> Bounds:
    """The lowest and the highest value that the expression may have, for every value of the known elements.

    The elements' arrays share one shape, which the results have or broadcast to; booleans are 0 and 1. Row sums of
    their inputs are at least 1: these are masks that are 0 only at padding.
    """
    if isinstance(expr, Number):
        return _exact(np.asarray(expr.value, dtype=np.float64))
    if isinstance(expr, Index):
        value = expr.poly.constant()
        return _unknown() if value is None else _exact(np.asarray(value, dtype=np.float64))
    if isinstance(expr, Element):
        if expr in elements:
            return _exact(np.asarray(elements[expr], dtype=np.float64))
        return _truth() if expr.dtype == "bool" else _unknown()
    if isinstance(expr, RowSum):
        # The results of a row without any token do not matter.
        is_given = any(element.source == expr.source for element in elements)
        return np.asarray(1.0 if is_given else 0.0), np.asarray(LARGEST)
    return _apply(expr, [bounds(arg, elements) for arg in expr.args])


def bounds_by_cases(expr: Expr, elements: Mapping[Element, npt.NDArray[Any]]) -> Bounds:
    """The same over all outcomes of comparisons of positions, such as a key after the query, or not.

    So `where(causal + mask == 0, low, causal)` is low for a masked key in either case.
    """
    comparisons = sorted(_comparisons(expr), key=str)
    if not 0 < len(comparisons) <= _MOST_CASES:
        return bounds(expr, elements)
    cases = [
        bounds(_decide(expr, dict(zip(comparisons, truths, strict=True))), elements)
        for truths in itertools.product((False, True), repeat=len(comparisons))
    ]
    lows, highs = (np.broadcast_arrays(*side) for side in zip(*cases, strict=True))
    return np.min(lows, axis=0), np.max(highs, axis=0)


def _comparisons(expr: Expr) -> set[Poly]:
    """The polynomials whose signs decide the comparisons of positions."""
    if not isinstance(expr, Apply):
        return set()
    condition = _condition(expr)
    return {condition[0]} if condition is not None else set().union(*(_comparisons(arg) for arg in expr.args))


def _decide(expr: Expr, truths: Mapping[Poly, bool]) -> Expr:
    """The expression once it is known which comparisons of positions are true."""
    if not isinstance(expr, Apply):
        return expr
    condition = _condition(expr)
    if condition is not None:
        return Number(truths[condition[0]] == condition[1], "bool")
    return apply(expr.op, tuple(_decide(arg, truths) for arg in expr.args), expr.dtype)


def _condition(expr: Apply) -> tuple[Poly, bool] | None:
    """(p, True) for a comparison of positions that means p >= 0, (p, False) for p < 0; None for anything else."""
    if expr.op not in _ORDERS or not all(isinstance(arg, Index) for arg in expr.args):
        return None
    one, two = (arg.poly for arg in expr.args if isinstance(arg, Index))
    above, strict = _ORDERS[expr.op]
    poly = (one - two if above else two - one) - int(strict)
    contrary = -poly - 1
    return (poly, True) if str(poly) <= str(contrary) else (contrary, False)


def _apply(expr: Apply, args: list[Bounds]) -> Bounds:
    with np.errstate(all="ignore"):
        if all(np.array_equal(low, high, equal_nan=True) for low, high in args):
            values = [low.astype(arg.dtype) for (low, _), arg in zip(args, expr.args, strict=True)]
            result = values[0] if expr.op == "Cast" else ELEMENTWISE[expr.op](*values)
            return _exact(np.asarray(result).astype(expr.dtype).astype(np.float64))
        rule = _RULES.get(expr.op)
        if rule is None:
            return _truth() if expr.dtype == "bool" else (np.asarray(-np.inf), np.asarray(np.inf))
        low, high = rule(*args)
        if expr.op == "Cast" and expr.dtype == "bool":
            return _flags((low > 0) | (high < 0), (low != 0) | (high != 0))
        if expr.op == "Cast" and expr.dtype.startswith(("int", "uint")):
            return np.trunc(low), np.trunc(high)
        return np.asarray(low, np.float64), np.asarray(high, np.float64)


def _exact(value: Values) -> Bounds:
    return value, value


def _unknown() -> Bounds:
    return np.asarray(-LARGEST), np.asarray(LARGEST)


def _truth() -> Bounds:
    return np.asarray(0.0), np.asarray(1.0)


def _flags(certain: Any, possible: Any) -> Bounds:
    return np.asarray(certain, np.float64), np.asarray(possible, np.float64)


def _not(a: Bounds) -> Bounds:
    return 1 - a[1], 1 - a[0]


def _product(a: Bounds, b: Bounds) -> Bounds:
    corners = np.stack(np.broadcast_arrays(*(x * y for x in a for y in b)))
    corners = np.where(np.isnan(corners), 0.0, corners)  # 0 times a bound that is not known
    return corners.min(0), corners.max(0)


def _where(test: Bounds, a: Bounds, b: Bounds) -> Bounds:
    either = np.minimum(a[0], b[0]), np.maximum(a[1], b[1])
    low, high = (np.where(test[0] > 0, x, np.where(test[1] > 0, z, y)) for x, y, z in zip(a, b, either, strict=True))
    return low, high


def _less(a: Bounds, b: Bounds) -> Bounds:
    return _flags(a[1] < b[0], a[0] < b[1])


def _less_or_equal(a: Bounds, b: Bounds) -> Bounds:
    return _flags(a[1] <= b[0], a[0] <= b[1])


def _equal(a: Bounds, b: Bounds) -> Bounds:
    same = (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0])
    return _flags(same, (a[0] <= b[1]) & (b[0] <= a[1]))


_RULES: Mapping[str, Callable[..., Bounds]] = MappingProxyType(
    {
        "Add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
        "And": lambda a, b: (np.minimum(a[0], b[0]), np.minimum(a[1], b[1])),
        "Cast": lambda a: a,
        "Equal": _equal,
        "Greater": lambda a, b: _less(b, a),
        "GreaterOrEqual": lambda a, b: _less_or_equal(b, a),
        "Less": _less,
        "LessOrEqual": _less_or_equal,
        "Max": lambda a, b: (np.maximum(a[0], b[0]), np.maximum(a[1], b[1])),
        "Min": lambda a, b: (np.minimum(a[0], b[0]), np.minimum(a[1], b[1])),
        "Mul": _product,
        "Neg": lambda a: (-a[1], -a[0]),
        "Not": _not,
        "Or": lambda a, b: (np.maximum(a[0], b[0]), np.maximum(a[1], b[1])),
        "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
        "Where": _where,
    }
)
