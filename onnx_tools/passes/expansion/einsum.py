# SPDX-License-Identifier: Apache-2.0
"""Einsum as what it stands for: transpositions, sums, and one MatMul or Mul for every two operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, find_standard, remove_nodes
from ...analysis.symbolic import Analysis
from ...match import NoMatch


def expand_einsums(graph: gs.Graph, analysis: Analysis) -> bool:
    """Replaces every Einsum whose equation can be followed; returns whether there was any."""
    editor, changed = Editor(graph), False
    for node in find_standard(graph, "Einsum"):
        try:
            terms, result = _terms(node, [analysis[tensor].rank for tensor in node.inputs])
        except NoMatch:
            continue
        expansion = _EinsumExpansion(editor, node, _sizes(analysis, node, terms))
        tensor, labels = node.inputs[0], terms[0]
        for index in range(1, len(terms)):
            later = set(result).union(*terms[index + 1 :])
            both = labels + terms[index]
            remaining = "".join(label for label in _join_labels(result, both) if label in later and label in both)
            tensor = expansion.contract(tensor, labels, node.inputs[index], terms[index], remaining)
            labels = remaining
        tensor = expansion.arrange(expansion.sum_over(tensor, labels, result), _without(labels, result), result)
        editor.redirect(node.outputs[0], tensor)
        remove_nodes(graph, [node])
        changed = True
    return changed


def _terms(node: gs.Node, ranks: Sequence[int | None]) -> tuple[list[str], str]:
    """The labels of the operands and of the result, with letters instead of dots. Raises NoMatch."""
    equation = node.attrs["equation"]
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(node.inputs):
        raise NoMatch("Einsum has another number of operands than its equation")
    free = [letter for letter in ascii_letters if letter not in text]
    dots = 0
    for part, rank in zip(parts, ranks, strict=True):
        if "..." in part:
            if rank is None:
                raise NoMatch("Einsum has dots for an unknown number of axes")
            dots = max(dots, rank - len(part.replace("...", "")))
    letters = "".join(free[:dots])
    if len(letters) < dots:
        raise NoMatch("Einsum has too many axes")
    terms = []
    for part, rank in zip(parts, ranks, strict=True):
        own = dots if rank is None else rank - len(part.replace("...", ""))
        terms.append(part.replace("...", letters[dots - own :] if "..." in part else ""))
    if not arrow:
        once = sorted(label for label in set(left) - set(",.") if left.count(label) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    result = right.replace("...", letters)
    if any(len(set(term)) != len(term) for term in [*terms, result]) or not set(result) <= set("".join(terms)):
        raise NoMatch("Einsum takes a diagonal")
    return terms, result


def _sizes(analysis: Analysis, node: gs.Node, terms: Sequence[str]) -> dict[str, int]:
    """The sizes that are known numbers, by label."""
    sizes = dict[str, int]()
    for tensor, labels in zip(node.inputs, terms, strict=True):
        for label, size in zip(labels, analysis[tensor].shape or (), strict=False):
            number = size.constant()
            if number is not None and number != 1:
                sizes[label] = number
    return sizes


def _join_labels(first: str, then: str) -> str:
    """All labels, those of `first` first, each once."""
    return "".join(dict.fromkeys(first + then))


def _without(labels: str, remaining: str) -> str:
    return "".join(label for label in labels if label in remaining)


class _EinsumExpansion:
    """Writes the operators of one Einsum."""

    def __init__(self, editor: Editor, node: gs.Node, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._nodes = editor.with_stem(node.name or "einsum")

    def contract(self, a: gs.Tensor, a_labels: str, b: gs.Tensor, b_labels: str, result: str) -> gs.Tensor:
        """The sum over the labels that are not in `result` of a * b, with axes as `result` names them."""
        a, a_labels = self.sum_over(a, a_labels, result + b_labels), _without(a_labels, result + b_labels)
        b, b_labels = self.sum_over(b, b_labels, result + a_labels), _without(b_labels, result + a_labels)
        inner = "".join(label for label in a_labels if label in b_labels and label not in result)
        if not inner:
            return self._nodes.op("Mul", self._spread(a, a_labels, result), self._spread(b, b_labels, result))
        if self._is_weight(a_labels, b_labels, inner):
            a, a_labels, b, b_labels = b, b_labels, a, a_labels
        if self._is_weight(b_labels, a_labels, inner):
            return self._linear(a, a_labels, b, b_labels, inner, result)
        row = next((label for label in reversed(result) if label in a_labels and label not in b_labels), "")
        column = next((label for label in reversed(result) if label in b_labels and label not in a_labels), "")
        batch = "".join(label for label in result if label not in (row, column))
        a = self._merge(a, a_labels, _without(batch, a_labels) + row, inner)
        b = self._merge(b, b_labels, _without(batch, b_labels) + column, inner)
        # "1" stands for the axis of size 1 that a vector gets, "@" for the merged inner axes; neither is a label.
        a = self._matrix(a, _without(batch, a_labels) + row + "@", batch, (row or "1") + "@")
        b = self._matrix(b, _without(batch, b_labels) + column + "@", batch, "@" + (column or "1"))
        total = self._nodes.op("MatMul", a, b)
        squeezed_axes = [len(batch) + index for index, label in enumerate((row, column)) if not label]
        if squeezed_axes:
            total = self._nodes.along("Squeeze", total, *squeezed_axes)
        return self.arrange(total, batch + row + column, result)

    def _is_weight(self, labels: str, others: str, inner: str) -> bool:
        """Whether all labels have known sizes, and several of them are columns, none of which the other operand has."""
        columns = [label for label in labels if label not in inner]
        return len(columns) > 1 and all(label in self._sizes for label in labels) and not set(columns) & set(others)

    def _linear(
        self, a: gs.Tensor, a_labels: str, weight: gs.Tensor, weight_labels: str, inner: str, result: str
    ) -> gs.Tensor:
        """x W with one matrix W, whose columns have several labels."""
        rows, columns = (_without(result, labels) for labels in (a_labels, weight_labels))
        sizes = [self._sizes[label] for label in columns]
        matrix = self.arrange(weight, weight_labels, inner + columns)
        matrix = self._nodes.reshape(matrix, -1, int(np.prod(sizes)))
        x = self._merge(a, a_labels, rows, inner)
        total = self._nodes.op("MatMul", x if rows else self._nodes.unsqueeze(x, 0), matrix)
        total = self._nodes.reshape(total, *([0] * len(rows)), *sizes)
        return self.arrange(total, rows + columns, result)

    def sum_over(self, tensor: gs.Tensor, labels: str, remaining: str) -> gs.Tensor:
        """The sum over the labels that are not in `remaining`."""
        axes = [axis for axis, label in enumerate(labels) if label not in remaining]
        if not axes:
            return tensor
        return self._nodes.along("ReduceSum", tensor, *axes, keepdims=0)

    def arrange(self, tensor: gs.Tensor, labels: str, result: str) -> gs.Tensor:
        """The tensor with its axes in the order of `result`."""
        return (
            tensor if labels == result else self._nodes.op("Transpose", tensor, perm=[labels.index(i) for i in result])
        )

    def _merge(self, tensor: gs.Tensor, labels: str, outer: str, inner: str) -> gs.Tensor:
        """The tensor as [*outer, inner as one axis]."""
        arranged = self.arrange(tensor, labels, outer + inner)
        if len(inner) == 1:
            return arranged
        return self._nodes.reshape(arranged, *([0] * len(outer)), -1)

    def _matrix(self, tensor: gs.Tensor, labels: str, batch: str, matrix: str) -> gs.Tensor:
        """The tensor as [*batch, *matrix], with axes of size 1 where it has none, except for leading ones."""
        return self._spread(tensor, labels, (batch + matrix).lstrip("".join(set(batch) - set(labels)) or " "))

    def _spread(self, tensor: gs.Tensor, labels: str, result: str) -> gs.Tensor:
        """The tensor with axes in the order of the result, of size 1 where it has none."""
        arranged = self.arrange(tensor, labels, _without(result, labels))
        new_axes = [axis for axis, label in enumerate(result) if label not in labels]
        return self._nodes.unsqueeze(arranged, *new_axes) if new_axes else arranged
