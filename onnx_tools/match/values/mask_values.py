# SPDX-License-Identifier: Apache-2.0
"""Which values of an input keep a slot: of masks of 0 and 1, of inverted ones, of levels, and of ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...analysis import REORDERINGS, is_standard, readers_after, table_of
from ...analysis.symbolic import (
    COMPARISONS,
    Apply,
    Element,
    Expr,
    Facts,
    Index,
    Number,
    evaluate,
    leaves,
    leaves_of,
    uncast,
)
from .. import NoMatch

# Tried for an input whose values nothing limits; constants of the expression and their neighbours are added.
_SAMPLES = (-2, -1, 0, 1, 2, 3)
_MOST = 8  # the most values that a rule names one by one
_MOVING = REORDERINGS | {"Cast", "Expand", "Slice"}
_ARITHMETIC = ("Add", "Log", "Mul", "Neg", "Reciprocal", "Sub")


@dataclass(frozen=True)
class Keeping:
    """The rule by which an input's values keep a slot.

    `form`: "nonzero" or "zero" for plain masks, which have two values and say nothing else; "except" or "only" for
    several `values`; "above" or "below" for the one value there.
    """

    source: str
    form: str
    values: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether the input has two values and says nothing else."""
        return self.form in ("nonzero", "zero")

    def __str__(self) -> str:
        values_text = ", ".join(str(value) for value in self.values)
        return f"{self.source} {self.form} {values_text}" if self.values else f"{self.source} {self.form}"


@dataclass(frozen=True)
class Domain:
    """The values that an input may have: all of them (`complete`), or those to try."""

    values: npt.NDArray[np.int64]
    complete: bool


def table_rows(tensor: gs.Tensor) -> int | None:
    """The rows of the smallest table that an input's values choose from; None where they choose from none."""
    readers = readers_after([tensor], lambda node, read: is_standard(node, *_MOVING) and node.inputs[0] is read)
    tables = [table_of(node) for node, read in readers if len(node.inputs) > 1 and node.inputs[1] is read]
    return min((int(table.shape[0]) for table in tables if table is not None and len(table.shape) > 1), default=None)


def domain_of(dtype: str, rows: int | None, exprs: Iterable[Expr]) -> Domain:
    """The values to try for an input in expressions, by its type and the `rows` of a table that it indexes, if any."""
    if dtype == "bool":
        return Domain(np.arange(2), True)
    if rows is not None:
        return Domain(np.arange(rows), True)
    return Domain(_with_neighbours(_SAMPLES, exprs), False)


def _with_neighbours(values: tuple[int, ...], exprs: Iterable[Expr]) -> npt.NDArray[np.int64]:
    """The values, and those at which comparisons with constants of the expressions may change."""
    numbers = set(values)
    for leaf in set().union(*(leaves(expr) for expr in exprs)):
        value = leaf.poly.constant() if isinstance(leaf, Index) else leaf.value if isinstance(leaf, Number) else None
        if value is not None and abs(value) < 1 << 31:
            numbers |= {int(value) + step for step in (-1, 0, 1, 2)}
    return np.asarray(sorted(numbers))


def keeping(source: str, domain: Domain, is_token: np.ndarray, masked: np.ndarray, binary: bool) -> Keeping:
    """The rule that tells values of tokens (`is_token`) from `masked` ones. Raises NoMatch where none is known.

    Values that are neither change scores in another way: an input has none of them, unless they are known to occur.
    `binary`: whether the graph treats the input as a boolean; it is 0 or 1 then, unless a table says that it has more.
    """
    state = {int(v): bool(k) for v, k, m in zip(domain.values, is_token, masked, strict=True) if bool(k) != bool(m)}
    if binary and not domain.complete:
        state = {value: state[value] for value in (0, 1) if value in state}
    two = domain.values.tolist() == [0, 1] or (binary and not domain.complete)
    if two and len(state) == 2 and state[0] != state[1]:
        return Keeping(source, "nonzero" if state[1] else "zero")
    if domain.complete and len(state) < len(domain.values):
        raise NoMatch(f"values of '{source}' neither keep nor mask a key")
    keep, drop = ([value for value in sorted(state) if state[value] is outcome] for outcome in (True, False))
    if not keep or not drop:
        raise NoMatch(f"all values of '{source}' {'keep' if keep else 'mask'} a key")
    first, last = state[min(state)], state[max(state)]
    if len(drop) <= _MOST and (domain.complete or (first and last)):
        return Keeping(source, "except", tuple(drop))
    if len(keep) <= _MOST and (domain.complete or not (first or last)):
        return Keeping(source, "only", tuple(keep))
    if max(drop) < min(keep):
        return Keeping(source, "above", (max(drop),))
    if max(keep) < min(drop):
        return Keeping(source, "below", (min(drop),))
    raise NoMatch(f"{len(drop)} values of '{source}' mask a key; at most {_MOST}, or all up to one, are known")


def is_binary(expr: Expr, element: Element) -> bool:
    """Whether an expression treats an element as a boolean: by a cast, a test for 0 or 1, or arithmetic on it."""
    if not isinstance(expr, Apply) or element.dtype.startswith("float"):
        return True
    if any(uncast(arg) == element for arg in expr.args) and expr.op != "Cast":
        numbers = [value for arg in expr.args if (value := _number(arg)) is not None]
        test = expr.op == "Equal" and all(value in (0, 1) for value in numbers) and len(numbers) == 1
        choice = (expr.op in COMPARISONS or expr.op == "Where") and all(
            arg.dtype == "bool" for arg in expr.args if uncast(arg) == element
        )
        if not (test or choice or expr.op in _ARITHMETIC):
            return False
    return all(is_binary(arg, element) for arg in expr.args)


def _number(expr: Expr) -> float | None:
    if isinstance(expr, Index):
        return expr.poly.constant()
    return float(expr.value) if isinstance(expr, Number) else None


@dataclass(frozen=True)
class Mask:
    """What tells which slots of a graph are kept.

    `source` is the input, None where there is none: then every slot is a token. `kept_values` and `masked` are values
    that it may have; of a plain mask they are all that it has, one each. `rule` is not 0 where a value keeps its slot.
    """

    source: str | None
    kept_values: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()
    plain: bool = True
    rule: Expr | None = None

    def outcomes(self, expr: Expr | None, axes: tuple[str, ...]) -> tuple[float, float] | None:
        """What an expression of the mask's own slot is where the slot is kept, and where it is masked.

        None where it is something else, or not the same for all values that keep a slot, or mask one.
        """
        if expr is None or self.source is None:
            return None
        elements = leaves_of(expr, Element)
        if len(elements) != 1 or any(leaf.source != self.source for leaf in elements):
            return None
        element = elements.pop()
        if tuple(str(index) for index in element.indices) != axes or not (self.plain or _only_compares(expr, element)):
            return None
        samples = (*self.kept_values, *self.masked)
        values = [int(value) for value in (samples if self.plain else _with_neighbours(samples, [expr]))]
        try:
            results = [float(evaluate(expr, {element: value})) for value in values]
        except ValueError:
            return None
        pairs = {(self.keeps(value), result) for value, result in zip(values, results, strict=True)}
        outcome_of = dict(sorted(pairs))
        return (outcome_of[True], outcome_of[False]) if len(pairs) == len(outcome_of) == 2 else None

    def keeps(self, value: int) -> bool:
        """Whether a value of the input keeps its slot."""
        return self.rule is not None and bool(_at(self.rule, np.asarray(value)))

    def describe(self, limit: int | None) -> dict[str, object] | None:
        """For the metadata: the input and its values; None where every slot is a token.

        For an input whose values are below a `limit`, all those that mask a slot are listed.
        """
        if self.source is None:
            return None
        masked = self.masked
        if not self.plain and self.rule is not None and limit is not None:
            values = np.arange(limit)
            masked = tuple(np.flatnonzero(_at(self.rule, values) == 0).tolist())
        return {"input": self.source, "kept": list(self.kept_values), "masked": list(masked), "plain": self.plain}


def _only_compares(expr: Expr, element: Element) -> bool:
    """Whether an expression depends on the element only by comparing it with constants, or as a boolean."""
    if not isinstance(expr, Apply):
        return expr != element
    if expr.op in COMPARISONS and any(uncast(arg) == element for arg in expr.args):
        others = [arg for arg in expr.args if uncast(arg) != element]
        return all(_number(arg) is not None for arg in others)
    if expr.op == "Cast" and expr.dtype == "bool" and uncast(expr) == element:
        return True
    return all(_only_compares(arg, element) for arg in expr.args)


def mask_of(facts: Facts) -> Mask:
    """What the boundary's mask int32 [B,S] is made of, from the facts about it."""
    expr = facts.expr
    elements = [] if expr is None else list(leaves_of(expr, Element))
    if expr is None or not elements:
        return Mask(None)
    plain = _is_plain(expr)
    samples = (0, 1) if plain else [int(value) for value in _with_neighbours(_SAMPLES, [expr]) if value >= 0]
    outcome = _at(expr, np.asarray(samples)) != 0
    keep, drop = (tuple(np.asarray(samples)[outcome == is_kept].tolist()) for is_kept in (True, False))
    return Mask(elements[0].source, keep, drop, plain, expr)


def _at(rule: Expr, values: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """What a rule says about values of its input."""
    return np.asarray(evaluate(rule, dict.fromkeys(leaves_of(rule, Element), values)))


def _is_plain(expr: Expr) -> bool:
    return not isinstance(expr, Apply) or (expr.op in ("Cast", "Not") and all(_is_plain(arg) for arg in expr.args))
