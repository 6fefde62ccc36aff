# SPDX-License-Identifier: Apache-2.0
"""How long a sequence may be: what a model's tables and buffers of positions allow.

Numbers that grow with the length may index something of a fixed size: rows of a table of positions, or the end of a
slice of a buffer. The longest sequence is the last one for which all of them lie inside. Where the analysis knows them
as formulas, these are evaluated; otherwise the few nodes that compute them are run at some lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_graphsurgeon as gs

from .computation import NotComputedError
from .computed_numbers import ComputedNumbers, computed_numbers
from .graph import argument, is_standard
from .once import once
from .onnx_operators import OPERATORS, ShapeRule
from .symbolic import Analysis, Axis, Index, Poly
from .symbolic.arguments import axes_of_node, axis_of
from .symbolic.expr import ELEMENTWISE as ARITHMETIC
from .symbolic.expr import Expr, uncast
from .symbolic.facts import Facts, Shape

_BROADCASTING = tuple(name for name, record in OPERATORS.items() if record.shape is ShapeRule.BROADCAST)
_ENDLESS = 1 << 30  # tokens
_LONGEST_TRIAL = 1024  # tokens; beyond it, numbers are assumed to go on growing as they do up to it
_TRIED_AFTER = 4096  # tokens; up to here that assumption is checked at the limit

Range = tuple[int, int]
Numbers = Callable[[int], Range]
"""Length -> the lowest and the highest number."""


@dataclass(frozen=True)
class _LookUp:
    """Numbers that have to lie in an axis of `size`: all of a tensor's, or those of a column of its last axis."""

    size: int
    tensor: gs.Tensor | None = None
    column: int | None = None
    formulas: tuple[Poly, ...] = ()  # the numbers, where there is no tensor
    past: bool = False  # whether `size` itself is allowed, as for the end of a slice, which is no index

    def margins(self, numbers: Numbers, length: int) -> Range:
        """How far inside the lowest and the highest number are at a length; negative where they are outside.

        If the lowest number is negative for a single token, numbers may count from the end of the axis.
        """
        low, high = numbers(length)
        floor = 0 if numbers(1)[0] >= 0 else -self.size
        return low - floor, self.size - (not self.past) - high


def longest_sequence(graph: gs.Graph, analysis: Analysis) -> int | None:
    """The most tokens of a sequence for which an imported graph still works; None if nothing limits them.

    Tables that an input indexes do not count: their size limits the input's values.
    """
    limits, lengths = list[int | None](), dict[tuple[str, int | None, int, bool], int | None]()
    for look_up in _look_ups(graph, analysis):
        formulas = _formulas(look_up, analysis)
        if formulas is not None:
            limits.append(_last_inside(partial(look_up.margins, partial(_between, formulas)), _ENDLESS))
        elif look_up.tensor is not None:
            numbers = computed_numbers(graph, analysis, look_up.tensor, look_up.column)
            if numbers is not None:
                key = (numbers.key, look_up.column, look_up.size, look_up.past)
                limits.append(once(lengths, key, partial(_by_trying, look_up, numbers)))
    return min((item for item in limits if item is not None), default=None)


def _look_ups(graph: gs.Graph, analysis: Analysis) -> Iterator[_LookUp]:
    for node in graph.nodes:
        input_facts = [analysis[tensor] for tensor in node.inputs]
        if is_standard(node, "Gather", "GatherElements", "GatherND"):
            yield from _indices(node, input_facts)
        elif is_standard(node, "OneHot"):
            depth = input_facts[1].plain_integers()
            if depth is not None and len(depth) == 1:
                yield _LookUp(depth[0], node.inputs[0])
        elif is_standard(node, "Slice"):
            yield from _slices(node, input_facts)
        elif is_standard(node, *ARITHMETIC, *_BROADCASTING):
            yield from _broadcast([item.shape for item in input_facts])


def _indices(node: gs.Node, input_facts: Sequence[Facts]) -> Iterator[_LookUp]:
    data, indices = input_facts[0].shape, input_facts[1].shape
    if not data:
        return
    if is_standard(node, "GatherND"):
        batch = int(node.attrs.get("batch_dims", 0))
        columns = None if not indices else indices[-1].constant()
        for column in range(columns or 0):
            size = data[batch + column].constant()
            if size is not None:
                yield _LookUp(size, node.inputs[1], column)
        return
    axis = axis_of(node, len(data))
    size = data[axis].constant()
    if size is not None:
        yield _LookUp(size, node.inputs[1])
    if is_standard(node, "GatherElements") and indices is not None:
        for position, (there, index) in enumerate(zip(data, indices, strict=True)):
            size = there.constant()
            if position != axis and size is not None:
                yield _LookUp(size, formulas=(index,), past=True)


def _slices(node: gs.Node, input_facts: Sequence[Facts]) -> Iterator[_LookUp]:
    """Starts and ends in axes of a fixed size."""
    data = input_facts[0].shape
    if not data or argument(node, 1) is None or argument(node, 2) is None:
        return  # in old opsets these are attributes: fixed numbers, which do not grow
    axes = axes_of_node(node, input_facts)
    if axes is None:
        if argument(node, 3) is not None:
            return
        axes = list(range(len(data)))
    for column, axis in enumerate(axes):
        size = data[axis].constant()
        if size is not None:
            yield from (_LookUp(size, node.inputs[position], column, past=True) for position in (1, 2))


def _broadcast(shapes: Sequence[Shape | None]) -> Iterator[_LookUp]:
    """Operands whose length grows with the sequence, where another operand has a fixed length."""
    known_shapes = [shape for shape in shapes if shape is not None]
    for axis in range(1, 1 + max((len(shape) for shape in known_shapes), default=0)):
        sizes = [shape[-axis] for shape in known_shapes if len(shape) >= axis]
        numbers = {size.constant() or 1 for size in sizes} - {1}
        growing = tuple(size for size in sizes if size.constant() is None)
        if len(numbers) == 1 and growing:
            yield _LookUp(numbers.pop(), formulas=growing, past=True)


def _formulas(look_up: _LookUp, analysis: Analysis) -> tuple[tuple[Poly, ...], tuple[Poly, ...]] | None:
    """The smallest and the largest number that each element may be, as sums of sizes; None where not known."""
    if look_up.tensor is None:
        ends_of_each = [(item, item) for item in look_up.formulas]
    else:
        facts = analysis[look_up.tensor]
        if facts.elements is not None:
            elements = facts.elements if look_up.column is None else facts.elements[..., look_up.column]
            ends_of_each = [(item.poly, item.poly) for item in elements.flat if isinstance(item, Index)]
            if len(ends_of_each) != elements.size:
                return None
        else:
            ends = None if look_up.column is not None or facts.shape is None else _ends(facts.expr, facts.shape)
            ends_of_each = [] if ends is None else [ends]
    if not ends_of_each or any(not low.atoms() | high.atoms() <= {"B", "S"} for low, high in ends_of_each):
        return None
    return tuple(low for low, _ in ends_of_each), tuple(high for _, high in ends_of_each)


def _ends(expr: Expr | None, shape: Shape) -> tuple[Poly, Poly] | None:
    """The smallest and the largest value of a sum of indices and sizes."""
    expr = uncast(expr)
    if not isinstance(expr, Index):
        return None
    low = high = Poly()
    for monomial, factor in expr.poly.terms:
        axes = [atom for atom in monomial if isinstance(atom, Axis)]
        if len(axes) > 1:
            return None
        rest = Poly(((tuple(atom for atom in monomial if not isinstance(atom, Axis)), factor),))
        last = rest * (shape[axes[0].number] - 1) if axes else rest
        first = Poly() if axes else rest
        low, high = low + (first if factor > 0 else last), high + (last if factor > 0 else first)
    return low, high


def _between(formulas: tuple[tuple[Poly, ...], tuple[Poly, ...]], length: int) -> Range:
    sizes = {"B": 1, "S": length}
    low, high = ([item.evaluate(lambda name: sizes[name]) for item in side] for side in formulas)
    return min(low), max(high)


def _last_inside(margins: Numbers, top: int) -> int | None:
    """The last length that is inside; None if even `top` is, or if not even length 1 is."""

    def fits(length: int) -> bool:
        return min(margins(length)) >= 0

    if not fits(1) or fits(top):
        return None
    inside, outside = 1, 2
    while fits(outside):
        inside, outside = outside, min(2 * outside, top)
    while outside - inside > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if fits(middle) else (inside, middle)
    return inside


def _by_trying(look_up: _LookUp, numbers: ComputedNumbers) -> int | None:
    """The last length that is inside, found by running the nodes; even growth up to _LONGEST_TRIAL goes on after it."""

    def margins(length: int) -> Range:
        try:
            return look_up.margins(numbers, length)
        except NotComputedError:
            return -1, -1

    longest = _last_inside(margins, _LONGEST_TRIAL)
    if longest is not None or min(margins(1)) < 0:
        return longest
    sides = [margins(_LONGEST_TRIAL // part) for part in (4, 2, 1)]
    for quarter, half, whole in [tuple(item[side] for item in sides) for side in (0, 1)]:
        if half > whole and 2 * (quarter - half) == half - whole:
            last = _LONGEST_TRIAL + whole * _LONGEST_TRIAL // 2 // (half - whole)
            if last >= _TRIED_AFTER or min(margins(last + 1)) < 0:
                return last
    return None
