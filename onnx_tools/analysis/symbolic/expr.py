# SPDX-License-Identifier: Apache-2.0
"""One element of a tensor as an expression of its indices: how masks and positions are proved to be what they seem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from .poly import Atom, Axis, Poly


@dataclass(frozen=True)
class Index:
    """An integer made of axis indices and dimensions."""

    poly: Poly
    dtype: str = "int64"


@dataclass(frozen=True)
class Number:
    """A constant; `value` is a plain bool, int or float."""

    value: bool | int | float
    dtype: str


@dataclass(frozen=True)
class Element:
    """The element of a graph input at the given indices."""

    source: str
    indices: tuple[Poly, ...]
    dtype: str


@dataclass(frozen=True)
class RowSum:
    """The sum of a row of a graph input [B,S]; for a mask, this is the number of its kept tokens."""

    source: str
    row: Poly
    dtype: str


@dataclass(frozen=True)
class Apply:
    """An element-wise operator applied to expressions; Cast keeps its target in `dtype`."""

    op: str
    args: tuple[Expr, ...]
    dtype: str


Expr = Index | Number | Element | RowSum | Apply
ExprT = TypeVar("ExprT", bound="Expr | None")
LeafT = TypeVar("LeafT", Index, Element, RowSum)


def uncast(expr: ExprT) -> ExprT | Expr:
    """An expression without its outermost casts; None stays None."""
    return uncast(expr.args[0]) if isinstance(expr, Apply) and expr.op == "Cast" else expr


def _divide(a: Any, b: Any) -> Any:
    return a // b if np.issubdtype(np.asarray(a).dtype, np.integer) else a / b


def _clip(x: Any, low: Any = None, high: Any = None) -> Any:
    low = x if low is None else low
    return np.maximum(x, low) if high is None else np.minimum(np.maximum(x, low), high)


ELEMENTWISE: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "Abs": np.abs,
        "Add": np.add,
        "And": np.logical_and,
        "Ceil": np.ceil,
        "Clip": _clip,
        "Div": _divide,
        "Equal": np.equal,
        "Exp": np.exp,
        "Floor": np.floor,
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
        "Log": np.log,
        "Max": np.maximum,
        "Min": np.minimum,
        "Mod": np.mod,
        "Mul": np.multiply,
        "Neg": np.negative,
        "Not": np.logical_not,
        "Or": np.logical_or,
        "Pow": np.power,
        "Reciprocal": np.reciprocal,
        "Relu": lambda x: np.maximum(x, 0),
        "Sign": np.sign,
        "Sqrt": np.sqrt,
        "Sub": np.subtract,
        "Where": np.where,
        "Xor": np.logical_xor,
    }
)
COMPARISONS = frozenset({"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor"})
_MOST_POWER = 8  # of sizes: torch.export writes S * S / S
_WHOLE = ("float32", "float64", "int32", "int64")  # types that hold every position


def apply(op: str, args: tuple[Expr, ...], dtype: str) -> Expr:
    """The expression op(args), simplified where the result is certain."""
    polys = [_poly(arg) for arg in args]
    if op in ("Add", "Sub", "Mul") and polys[0] is not None and polys[1] is not None:
        first, second = polys[0], polys[1]
        return Index(first + second if op == "Add" else first - second if op == "Sub" else first * second, dtype)
    if op in ("Div", "Mod") and dtype.startswith("int") and polys[0] is not None and polys[1] is not None:
        quotient = polys[0].divided_exactly(polys[1])
        if quotient is not None:
            return Index(quotient if op == "Div" else Poly(), dtype)
    if op == "Pow" and dtype.startswith("int") and polys[0] is not None and polys[1] is not None:
        power = polys[1].constant()
        if power is not None and 0 <= power <= _MOST_POWER:
            return Index(math.prod([polys[0]] * power, start=Poly.of(1)), dtype)
    if op == "Neg" and polys[0] is not None:
        return Index(-polys[0], dtype)
    if op == "Cast" and polys[0] is not None and dtype.startswith("int"):
        return Index(polys[0], dtype)
    numbers = [whole(arg) for arg in args] if op in COMPARISONS else []
    if len(numbers) == 2 and numbers[0] is not None and numbers[1] is not None:
        outcome = _compare(op, numbers[0] - numbers[1])
        if outcome is not None:
            return Number(outcome, "bool")
    if op in ("Max", "Min") and len(polys) == 2 and polys[0] is not None and polys[1] is not None:
        apart = polys[0] - polys[1] if op == "Max" else polys[1] - polys[0]
        if apart.is_non_negative() or (-apart).is_non_negative():
            return args[0] if apart.is_non_negative() else args[1]
    if all(is_constant(arg) for arg in args):
        return number(evaluate(Apply(op, args, dtype), {}), dtype)
    if op in ("And", "Or"):
        for this, other in (args, args[::-1]):
            if isinstance(this, Number):
                return other if bool(this.value) == (op == "And") else this
    if op == "Where" and isinstance(args[0], Number):
        return args[1] if args[0].value else args[2]
    if op == "Cast" and args[0].dtype == dtype:
        return args[0]
    return Apply(op, args, dtype)


def is_constant(expr: Expr) -> bool:
    """Whether the expression is one known value."""
    return isinstance(expr, Number) or (isinstance(expr, Index) and expr.poly.constant() is not None)


def number(value: Any, dtype: str) -> Expr:
    """A constant expression; integers become an Index so that index arithmetic can go on."""
    plain = value.item() if hasattr(value, "item") else value
    if dtype.startswith(("int", "uint")):
        return Index(Poly.of(int(plain)), dtype)
    return Number(plain, dtype)


def substitute(expr: Expr, values: Mapping[Atom, Poly], sizes: Mapping[int, Poly]) -> Expr:
    """Replaces axes by polynomials; `sizes` are those of the axes in the result."""
    if isinstance(expr, Index):
        return Index(expr.poly.substitute(values, sizes), expr.dtype)
    if isinstance(expr, Element):
        return Element(expr.source, tuple(p.substitute(values, sizes) for p in expr.indices), expr.dtype)
    if isinstance(expr, RowSum):
        return RowSum(expr.source, expr.row.substitute(values, sizes), expr.dtype)
    if isinstance(expr, Apply):
        return apply(expr.op, tuple(substitute(arg, values, sizes) for arg in expr.args), expr.dtype)
    return expr


def replace_element(expr: Expr, element: Element, value: Expr) -> Expr:
    """The expression with an element replaced by `value`."""
    if isinstance(expr, Apply):
        return apply(expr.op, tuple(replace_element(arg, element, value) for arg in expr.args), expr.dtype)
    return value if expr == element else expr


def size_of(expr: Expr) -> int:
    """Number of parts: operators, leaves, and the atoms of their polynomials."""
    if isinstance(expr, Apply):
        return 1 + sum(size_of(arg) for arg in expr.args)
    return 1 + sum(len(monomial) for poly in _polys(expr) for monomial, _ in poly.terms)


def _polys(leaf: Expr) -> tuple[Poly, ...]:
    """The polynomials in an Index, Element or RowSum; a Number has none."""
    if isinstance(leaf, Index):
        return (leaf.poly,)
    if isinstance(leaf, Element):
        return leaf.indices
    return (leaf.row,) if isinstance(leaf, RowSum) else ()


def leaves(expr: Expr) -> set[Expr]:
    """Every Index, Number, Element and RowSum in the expression."""
    if isinstance(expr, Apply):
        return set().union(*(leaves(arg) for arg in expr.args))
    return {expr}


def leaves_of(expr: Expr, kind: type[LeafT]) -> set[LeafT]:
    """The leaves of one kind."""
    return {leaf for leaf in leaves(expr) if isinstance(leaf, kind)}


def axes_of(expr: Expr) -> set[int]:
    """The axes that the expression depends on."""
    return set().union(*(poly.axes() for leaf in leaves(expr) for poly in _polys(leaf)))


def evaluate(expr: Expr, elements: Mapping[Element, Any]) -> Any:
    """The expression's value (a numpy scalar) for the given elements of graph inputs.

    Raises KeyError for an element that is not given, ValueError where it depends on a dimension, an index or a sum.
    """
    if isinstance(expr, Number):
        return np.dtype(expr.dtype).type(expr.value)
    if isinstance(expr, Index):
        value = expr.poly.constant()
        if value is None:
            raise ValueError(f"'{expr.poly}' is no constant")
        return np.dtype(expr.dtype).type(value)
    if isinstance(expr, Element):
        return np.dtype(expr.dtype).type(elements[expr])
    if isinstance(expr, RowSum):
        raise ValueError(f"the sum of a row of '{expr.source}' is no constant")
    args = [evaluate(arg, elements) for arg in expr.args]
    with np.errstate(all="ignore"):
        result = args[0] if expr.op == "Cast" else ELEMENTWISE[expr.op](*args)
        return np.asarray(result).astype(expr.dtype)[()]


def axis_index(number_: int) -> Poly:
    """The index along an axis, as a polynomial."""
    return Poly.atom(Axis(number_))


def _poly(expr: Expr) -> Poly | None:
    return expr.poly if isinstance(expr, Index) else None


def whole(expr: Expr) -> Poly | None:
    """The whole number that an expression equals, whatever its type; None where it is not known to be one."""
    if isinstance(expr, Index):
        return expr.poly
    if isinstance(expr, Number):
        is_whole = expr.dtype != "bool" and float(expr.value).is_integer()
        return Poly.of(int(expr.value)) if is_whole else None
    if not isinstance(expr, Apply) or expr.dtype not in _WHOLE:
        return None
    parts = [whole(arg) for arg in expr.args]
    if expr.op == "Cast":
        return parts[0]
    if expr.op not in ("Add", "Sub") or parts[0] is None or parts[1] is None:
        return None
    return parts[0] + parts[1] if expr.op == "Add" else parts[0] - parts[1]


def _compare(op: str, difference: Poly) -> bool | None:
    """a op b for a - b = difference, or None where that is not certain."""
    above, below = difference.is_positive(), (-difference).is_positive()
    at_least, at_most = difference.is_non_negative(), (-difference).is_non_negative()
    certain = {
        "Equal": (not difference.terms, above or below),
        "Greater": (above, at_most),
        "GreaterOrEqual": (at_least, below),
        "Less": (below, at_least),
        "LessOrEqual": (at_most, above),
    }
    is_true, is_false = certain.get(op, (False, False))
    return True if is_true else False if is_false else None
