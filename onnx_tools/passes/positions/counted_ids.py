# SPDX-License-Identifier: Apache-2.0
"""Positions that count a row's tokens, by their ids as RoBERTa does, or by the mask: cumsum(kept) and an offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, S, find_standard, is_output, is_standard, is_token_shape, producer
from ...analysis.symbolic import Analysis, Element, Expr, Index, axis_index, evaluate, leaves_of
from ...match.values import Mask, table_rows
from ..shapes import ShapeBuilder, shape_source

_OWN = (axis_index(0), axis_index(1))


@dataclass(frozen=True)
class _CountLine:
    """The number step * slot + start at every kept slot of a right-padded row."""

    step: float
    start: float


def count_slots(graph: gs.Graph, analysis: Analysis, mask: Mask) -> dict[str, tuple[int, ...]]:
    """Lets what counts kept slots count slots: in the packed interface these are the same.

    Returns the ids, by input, that were not counted: kept tokens must not have them.
    """
    excluded_ids = dict[str, tuple[int, ...]]()
    rows = {tensor.name: table_rows(tensor) for tensor in graph.inputs}
    editor = Editor(graph)
    builder = _Slots(editor, ShapeBuilder(editor, shape_source(graph)))
    for node in find_standard(graph, "CumSum"):
        counting = _Counting(analysis, mask, rows)
        if counting.counts(node):
            replacements = [_replace(analysis, counting, builder, tensor) for tensor in counting.results(graph, node)]
            if any(replacements) and counting.padding:
                excluded_ids[counting.source] = tuple(
                    sorted({*excluded_ids.get(counting.source, ()), *counting.padding})
                )
    return excluded_ids


def _replace(analysis: Analysis, counting: _Counting, builder: _Slots, tensor: gs.Tensor) -> bool:
    """Lets readers that do more than count read slot numbers instead; returns whether there were any."""
    line = counting.line(tensor)
    if line is None or line.step != 1 or not float(line.start).is_integer() or not counting.skips_padding(tensor):
        return False
    readers = [
        (node, index)
        for node in tensor.outputs
        for index, item in enumerate(node.inputs)
        if item is tensor and not is_standard(node, "Shape") and all(counting.line(x) is None for x in node.outputs)
    ]
    for node, index in readers:
        node.inputs[index] = builder.positions(int(line.start), analysis[tensor].dtype or "int64")
    return bool(readers)


class _Counting:
    """What is computed of one running sum over kept slots."""

    def __init__(self, analysis: Analysis, mask: Mask, rows: Mapping[str, int | None]) -> None:
        self.source = ""  # the input that is counted
        self.padding: tuple[int, ...] = ()  # ids that are not counted, where the input is not the mask
        self._analysis = analysis
        self._mask = mask
        self._rows = rows
        self._sum = ""  # the running sum
        self._ids = np.zeros(0, np.int64)  # those of the slots for which lines hold
        self._lines: dict[str, _CountLine | None] = {}
        self._at_padding: _Counting | None = None

    def counts(self, node: gs.Node) -> bool:
        """Whether a CumSum adds up 1 for every kept slot of a row."""
        facts, axis = self._analysis[node.inputs[0]], self._analysis[node.inputs[1]].plain_integers()
        element = _element(facts.expr)
        if not is_token_shape(facts.shape) or facts.rank != 2 or axis not in ([1], [-1]) or element is None:
            return False
        if node.attrs.get("reverse", 0) or facts.expr is None:
            return False
        self.source, self._sum = element.source, str(node.outputs[0].name)
        if self.source != self._mask.source:
            rows = self._rows.get(self.source)
            numbers = None if rows is None else _evaluate(facts.expr, element, np.arange(rows))
            if rows is None or numbers is None or not np.isin(numbers, (0, 1)).all() or not numbers.any():
                return False
            self.padding = tuple(int(item) for item in np.flatnonzero(numbers == 0))
            if len(self.padding) != 1:  # several may stand in sequences, as separators do, and are not counted
                return False
            self._ids = np.flatnonzero(numbers)
        if self._value(facts.expr) != 1:
            return False
        self._lines[self._sum] = _CountLine(1, 0 if node.attrs.get("exclusive", 0) else 1)
        return True

    def skips_padding(self, tensor: gs.Tensor) -> bool:
        """Whether slots with the padding id all have the same number: an id at which counting goes on is no padding."""
        if not self.padding:
            return True
        if self._at_padding is None:
            other = _Counting(self._analysis, self._mask, self._rows)
            other.source, other._ids = self.source, np.asarray(self.padding)
            other._lines[self._sum] = self._lines[self._sum]
            self._at_padding = other
        line = self._at_padding.line(tensor)
        return line is not None and not line.step

    def results(self, graph: gs.Graph, node: gs.Node) -> list[gs.Tensor]:
        """What is computed of the running sum and is known for every kept slot."""
        tensors, waiting = list[gs.Tensor](), [node.outputs[0]]
        while waiting:
            tensor = waiting.pop()
            if self.line(tensor) is None or any(item is tensor for item in tensors):
                continue
            tensors.append(tensor)
            waiting += [output for reader in tensor.outputs for output in reader.outputs]
        return [tensor for tensor in tensors if not is_output(graph, tensor)]

    def line(self, tensor: gs.Tensor) -> _CountLine | None:
        """What a tensor [B,S], or a number, is at kept slots."""
        if tensor.name not in self._lines:
            self._lines[tensor.name] = self._line(tensor)
        return self._lines[tensor.name]

    def _line(self, tensor: gs.Tensor) -> _CountLine | None:
        facts, node = self._analysis[tensor], producer(tensor)
        number = facts.scalar()
        if number is not None:
            return _CountLine(0, number)
        if facts.rank != 2 or (facts.dtype or "").startswith("bool"):
            return None
        if facts.expr is not None:
            value = self._value(facts.expr)
            return None if value is None else _CountLine(0, value)
        if node is None:
            return None
        if is_standard(node, "Cast", "Identity"):
            return self.line(node.inputs[0])
        if is_standard(node, "Where"):
            expr = self._analysis[node.inputs[0]].expr
            line_value = None if expr is None else self._value(expr)
            return None if line_value is None else self.line(node.inputs[1 if line_value else 2])
        if not is_standard(node, "Add", "Sub", "Mul"):
            return None
        one, two = (self.line(item) for item in node.inputs)
        if one is None or two is None:
            return None
        if node.op == "Mul":
            if one.step and two.step:
                return None
            factor, other = (one, two) if not one.step else (two, one)
            return _CountLine(factor.start * other.step, factor.start * other.start)
        sign = 1 if node.op == "Add" else -1
        return _CountLine(one.step + sign * two.step, one.start + sign * two.start)

    def _value(self, expr: Expr) -> float | None:
        """The one value that an expression of a slot's own element has where the slot is kept."""
        element = _element(expr)
        if element is None:
            return None
        if element.source == self._mask.source:
            outcomes = self._mask.outcomes(expr, (str(_OWN[0]), str(_OWN[1])))
            return None if outcomes is None else outcomes[0]
        values = _evaluate(expr, element, self._ids) if element.source == self.source else None
        return None if values is None or len(set(values.tolist())) != 1 else float(values[0])


def _element(expr: Expr | None) -> Element | None:
    """The one element in an expression, its slot's own; nothing else in it depends on the slot."""
    if expr is None:
        return None
    elements = leaves_of(expr, Element)
    others = [leaf for leaf in leaves_of(expr, Index) if leaf.poly.constant() is None]
    element = next(iter(elements)) if len(elements) == 1 and not others else None
    return element if element is not None and element.indices == _OWN else None


def _evaluate(expr: Expr, element: Element, values: np.ndarray) -> np.ndarray | None:
    """The values of an expression for all values of its element; None where they cannot be computed."""
    try:
        return np.broadcast_to(np.asarray(evaluate(expr, {element: values}), np.float64), values.shape)
    except ValueError:
        return None


class _Slots:
    """Makes the numbers of slots [B,S]."""

    def __init__(self, editor: Editor, shapes: ShapeBuilder) -> None:
        self._editor = editor
        self._shapes = shapes
        self._cache: dict[tuple[int, str], gs.Tensor] = {}

    def positions(self, offset: int, dtype: str) -> gs.Tensor:
        """offset, offset + 1, ... in every row."""
        if (offset, dtype) not in self._cache:
            editor, shapes = self._editor, self._shapes
            slots = editor.count_to(editor.along("Squeeze", shapes.build([S]), 0, stem="length"), "slots")
            indices = editor.op("Add", slots, offset, stem="slots") if offset else slots
            shape = editor.op("Shape", shapes.source, stem="token_shape")
            spread = editor.op("Expand", indices, shape, stem="slots_of_batch")
            self._cache[offset, dtype] = spread if dtype == "int64" else editor.cast(spread, dtype, "slots_of_batch")
        return self._cache[offset, dtype]
