# SPDX-License-Identifier: Apache-2.0
"""What depends on the distance between a query and a key alone: key position - query position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...analysis import ELEMENTWISE, Computation, NotComputedError, Positional, S, is_standard, present, producer
from ...analysis.symbolic import Apply, Element, Expr, Index, Poly, axis_index, evaluate, number, replace_element, whole
from .. import NoMatch
from ..values import OPEN, Keeping, Window
from .key_biases import KeyBiases, is_of_keys, is_of_queries

Float64s = npt.NDArray[np.float64]

DISTANCE = Element("", (), "int64")
"""Stands in expressions for the key's position less the query's."""
_DIFFERENCES = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Sub")
FARTHEST = 1 << 16  # tokens: the farthest distance that is tried where nothing limits it
_GRID = 1024  # tokens: the most that are tried where only a grid of all queries and keys can be computed
_MOST_RANGE = 1 << 13  # the longest table
_SAME_ELEMENTS = ("Gather", "Squeeze", "Transpose", "Unsqueeze")
_LINEAR = 1e-6  # the share by which slopes may differ between distances: roundoff of float32


def by_distance(expr: Expr, query: int, key: int) -> Expr | None:
    """The expression with DISTANCE instead of the indices along both axes; None where it reads them otherwise."""
    if isinstance(expr, Apply):
        pair = [whole(arg) for arg in expr.args] if expr.op in _DIFFERENCES else []
        if len(pair) == 2 and pair[0] is not None and pair[1] is not None:
            apart = by_distance(Index(pair[0] - pair[1]), query, key)
            if apart is None:
                return None
            if expr.op == "Sub":
                return Apply("Cast", (apart,), expr.dtype)
            return Apply(expr.op, (apart, number(0, "int64")), "bool")
        args = [by_distance(arg, query, key) for arg in expr.args]
        full_args = tuple(arg for arg in args if arg is not None)
        return Apply(expr.op, full_args, expr.dtype) if len(full_args) == len(args) else None
    if not isinstance(expr, Index) or expr.poly.constant() is not None:
        return expr
    step = next((factor for monomial, factor in expr.poly.terms if Poly(((monomial, 1),)) == axis_index(key)), 0)
    offset = (expr.poly - (axis_index(key) - axis_index(query)) * step).constant()
    if offset is None:
        return None
    scaled = Apply("Mul", (DISTANCE, number(step, "int64")), "int64")
    return Apply("Cast", (Apply("Add", (scaled, number(offset, "int64")), "int64"),), expr.dtype)


def at_distance(expr: Expr, distance: int) -> Expr:
    """The expression with a number in place of DISTANCE."""
    return replace_element(expr, DISTANCE, number(distance, "int64"))


@dataclass(frozen=True)
class Bias:
    """What is added to scores by distance: -slopes[h] * |distance|, or distances[h, clamp(distance, -R, R) + R]."""

    slopes: tuple[float, ...] | None = None
    distances: npt.NDArray[np.float32] | None = None  # [H,2R+1]
    counts_tokens: bool = (
        False  # whether distances are counted in tokens, whatever lies between these, and not in slots
    )

    @property
    def range(self) -> int:
        """R; 0 for slopes."""
        return 0 if self.distances is None else self.distances.shape[1] // 2

    @property
    def kind(self) -> str:
        """The operator's name for this kind of bias."""
        return "distance" if self.slopes is None else "slope"


class Biases:
    """Finds such biases in one graph; those that are computed alike are computed once."""

    def __init__(self, positional: Positional) -> None:
        self._positional = positional
        self._keys = KeyBiases(positional)
        self._numbers: dict[str, Float64s] = {}

    def total(
        self,
        parts: list[tuple[gs.Tensor, float]],
        heads: int,
        window: Window,
        keeps: Keeping | None,
        *,
        by_head: bool = False,
    ) -> Bias | None:
        """The sum of tensors [...,H or 1,S,S] times their factors; None where it makes no difference.

        Tensors [...,1,S] have one number per key; `keeps` is the mask's rule, `by_head` says how their heads are merged
        with sequences. What lies outside the `window` makes no difference either. Raises NoMatch where the sum is no
        function of the distance that PadfreeAttention knows.
        """
        biases, counts_tokens = list[Float64s](), bool(parts)
        for tensor, factor in parts:
            if is_of_queries(self._positional, tensor):
                continue
            values, by_order = self._along_keys(tensor, heads, keeps, by_head)
            biases.append(values * factor)
            counts_tokens = counts_tokens and by_order
        if not biases:
            return None
        reach = min(item.shape[1] for item in biases) // 2
        middle = [item[:, item.shape[1] // 2 - reach : item.shape[1] // 2 + reach + 1] for item in biases]
        values = np.broadcast_to(np.sum(np.broadcast_arrays(*middle), axis=0), (heads, 2 * reach + 1))
        bias = _bias(values, self._positional.longest, window)
        return bias if bias is None else replace(bias, counts_tokens=counts_tokens)

    def _along_keys(self, tensor: gs.Tensor, heads: int, keeps: Keeping | None, by_head: bool) -> tuple[Float64s, bool]:
        """[H or 1,2M+1]: the numbers at distances -M to M, and whether distances are counted in tokens."""
        if not is_of_keys(self._positional, tensor):
            return self._values(tensor), False
        line = self._keys.slopes(tensor, heads, keeps, by_head=by_head)
        return line.slopes[:, None] * self._all_distances(), line.counts_tokens

    def _all_distances(self, length: int | None = None) -> npt.NDArray[np.int64]:
        """The distances -M to M that occur in sequences, or in those of `length` tokens."""
        last = min((length or self._positional.longest or FARTHEST + 1) - 1, FARTHEST)
        return np.arange(-last, last + 1)

    def among(self, tensor: gs.Tensor, length: int) -> Float64s:
        """[H or 1,2M+1]: the numbers of a tensor at the distances among M + 1 tokens, which may depend on that length.

        Raises NoMatch where several numbers belong to one distance.
        """
        self._check_shape(tensor)
        along = self._along_distances(tensor, length)
        return along if along is not None else self._on_a_grid(tensor, length)

    def for_any_length(self, tensor: gs.Tensor) -> bool:
        """Whether no number of a tensor can depend on how many tokens there are."""
        return self._along_distances(tensor) is not None

    def _values(self, tensor: gs.Tensor) -> Float64s:
        """[H or 1,2M+1]: the numbers at distances -M to M."""
        self._check_shape(tensor)
        along = self._along_distances(tensor)
        return along if along is not None else self._on_a_grid(tensor, self._positional.longest)

    def _check_shape(self, tensor: gs.Tensor) -> None:
        shape = self._positional.analysis[tensor].shape or ()
        if len(shape) < 2 or shape[-2:] != (S, S) or any(size.constant() is None for size in shape[:-2]):
            raise NoMatch(f"'{tensor.name}' of shape [{', '.join(map(str, shape))}] is added to the scores")
        if any(size.constant() != 1 for size in shape[:-3]):
            raise NoMatch(f"'{tensor.name}' is added to the scores and differs between sequences")

    def _along_distances(self, tensor: gs.Tensor, length: int | None = None) -> Float64s | None:
        """The numbers from all distances instead of all queries and keys; None where nodes do not allow that.

        Without a `length` they hold for every length, on which nothing may depend then.
        """
        cuts = self._cuts(tensor)
        if cuts is None:
            return None
        distances = self._all_distances(length)
        cut_values = {item.name: self._spread(item, expr, distances) for item, expr in cuts}
        if tensor.name in cut_values:
            return cut_values[tensor.name].reshape(1, -1).astype(np.float64)
        computation = self._positional.computation(tensor, *(item for item, _ in cuts))
        if computation is None or (length is None and computation.sizes):
            return None
        key = f"{computation.key} {[str(expr) for _, expr in cuts]} {length}"
        if key not in self._numbers:
            biases = _run(computation, tensor, length or 1, cut_values)
            if biases.shape[-2:] != (1, len(distances)):
                return None
            self._numbers[key] = biases.reshape(-1, len(distances)).astype(np.float64)
        return self._numbers[key]

    def _spread(self, tensor: gs.Tensor, expr: Expr, distances: npt.NDArray[np.int64]) -> Float64s:
        """The numbers of an expression at N distances as [...,1,N], with as many axes as its tensor [...,S,S]."""
        values = np.broadcast_to(evaluate(expr, {DISTANCE: distances}), distances.shape)
        return values.reshape((1,) * ((self._positional.analysis[tensor].rank or 1) - 1) + distances.shape)

    def _cuts(self, tensor: gs.Tensor) -> list[tuple[gs.Tensor, Expr]] | None:
        """The tensors [...,S,S] of distances that a tensor is made of element by element; None for other tensors."""
        cuts, seen, waiting = list[tuple[gs.Tensor, Expr]](), set[str](), [tensor]
        while waiting:
            current = waiting.pop()
            facts = self._positional.analysis[current]
            shape = facts.shape
            if shape is None:
                return None
            if current.name in seen or S not in shape:
                continue
            seen.add(current.name)
            expr = None
            if facts.expr is not None and shape[-2:] == (S, S) and all(size.constant() == 1 for size in shape[:-2]):
                expr = by_distance(facts.expr, len(shape) - 2, len(shape) - 1)
            if expr is not None:
                cuts.append((current, expr))
                continue
            node = producer(current)
            if node is None or not is_standard(node, *ELEMENTWISE, *_SAME_ELEMENTS):
                return None
            waiting += present(node.inputs)
        return cuts

    def _on_a_grid(self, tensor: gs.Tensor, longest: int | None) -> Float64s:
        """The numbers from a grid of queries and keys. Raises NoMatch where they are no function of the distance."""
        computation = self._positional.computation(tensor)
        if computation is None:
            raise NoMatch(f"'{tensor.name}' is added to the scores and is not made of positions alone")
        if longest is None or longest > _GRID:
            limit = "any" if longest is None else str(longest)
            raise NoMatch(f"'{tensor.name}' is added to the scores of {limit} tokens; at most {_GRID} can be checked")
        key = f"{computation.key} {longest}"
        if key not in self._numbers:
            biases = _run(computation, tensor, longest, {})
            grid = biases.reshape(-1, *biases.shape[-2:]).astype(np.float64)
            if grid.shape[1:] != (longest, longest):
                raise NoMatch(f"'{tensor.name}' is added to the scores in another shape than [queries, keys]")
            values = np.concatenate([grid[:, :0:-1, 0], grid[:, 0]], axis=1)
            steps = np.arange(longest)
            if not np.array_equal(grid, values[:, steps[None] - steps[:, None] + longest - 1]):
                raise NoMatch(f"'{tensor.name}' is added to the scores and does not depend on distances alone")
            self._numbers[key] = values
        return self._numbers[key]


def _run(computation: Computation, tensor: gs.Tensor, length: int, cut_values: dict[str, Float64s]) -> Float64s:
    try:
        return computation.run(1, length, cut_values)
    except NotComputedError:
        raise NoMatch(f"'{tensor.name}' is added to the scores and cannot be computed from positions") from None


def _bias(values: Float64s, longest: int | None, window: Window) -> Bias | None:
    """The bias that has these values [H,2M+1] in the window. A number that all distances share changes no weight."""
    last = values.shape[1] // 2
    steps = np.arange(-last, last + 1)
    left, right = (last if side == OPEN else min(side, last) for side in (window.left, window.right))
    values = values[:, np.clip(steps, -left, right) + last]
    if not np.all(np.isfinite(values)):
        raise NoMatch("what is added to the scores is not finite at every distance")
    rest = values - values[:, last : last + 1]
    if not np.any(rest):
        return None
    slopes = -rest[:, 0] / left if left >= right else -rest[:, -1] / right
    linear = slopes[:, None] * np.abs(steps)
    seen = (steps >= -left) & (steps <= right)
    if np.all((np.abs(rest + linear) <= _LINEAR * np.abs(linear) + _LINEAR)[:, seen]):
        return Bias(slopes=tuple(float(slope) for slope in slopes))
    reach = reach_of(rest, longest)
    return Bias(distances=values[:, last - reach : last + reach + 1].astype(np.float32))


def reach_of(values: npt.NDArray[Any], longest: int | None) -> int:
    """R, the distance from which values [H,2M+1] stay the same on both sides. Raises NoMatch where there is none."""
    last = values.shape[1] // 2
    sides = values[:, last:], values[:, last::-1]
    changes = [np.flatnonzero(np.any(side != side[:, -1:], axis=0)) for side in sides]
    reach = 1 + max(int(indices.max(initial=-1)) for indices in changes)
    is_reached = longest is not None and last >= longest - 1
    if reach > _MOST_RANGE or (reach >= last and not is_reached):
        raise NoMatch(f"what is added to the scores still changes at a distance of {min(reach, last)}")
    return reach
