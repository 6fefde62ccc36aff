# SPDX-License-Identifier: Apache-2.0
"""Scores and attention weights [..., keys, queries] as [..., queries, keys].

They belong to a Softmax over its last axis but one, or to a MatMul whose result is transposed before the Softmax.
Graph optimisers move transpositions through a Softmax: tf2onnx does so where Keras multiplies K by Q.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import ELEMENTWISE, RESHAPES, Editor, S, find_standard, is_output, is_standard, made_by, producer
from ...analysis.symbolic import Analysis, Poly, Shape, axis_of, permutation
from ...match.chains import scale_of, square_source
from ..shapes import ShapeBuilder, is_of_sizes, shape_source

_SIZES = ((2, 3), (3, 5))  # B and S for which movements are tried


def transpose_softmaxes(graph: gs.Graph, analysis: Analysis) -> bool:
    """Moves Softmaxes of [..., S, S] to the last axis, and swaps operands of MatMuls; returns whether any changed."""
    editor = Editor(graph)
    transposing = _Transposes(editor, analysis, ShapeBuilder(editor, shape_source(graph)))
    softmaxes = [node for node in find_standard(graph, "Softmax") if _is_transposed(analysis, node)]
    for node in softmaxes:
        transposing(node)
    matmuls = [node for node in find_standard(graph, "Transpose") if _transposes_a_matmul(analysis, node)]
    for node in matmuls:
        editor.redirect(node.outputs[0], transposing.swap(node.inputs[0]))
    return bool(softmaxes or matmuls)


def _is_transposed(analysis: Analysis, node: gs.Node) -> bool:
    shape = analysis[node.inputs[0]].shape
    if shape is None or len(shape) < 3 or shape[-2:] != (S, S):
        return False
    return axis_of(node, len(shape)) == len(shape) - 2


def _transposes_a_matmul(analysis: Analysis, node: gs.Node) -> bool:
    """Whether a node swaps the last two axes of K Q^T, perhaps scaled by numbers, which makes it Q K^T."""
    shape, current = analysis[node.inputs[0]].shape, node.inputs[0]
    if shape is None or len(shape) < 3 or shape[-2:] != (S, S) or permutation(node, len(shape)) != _swap(len(shape)):
        return False
    while (scaled := scale_of(analysis, current)) is not None:
        current = scaled[0]
    matmul = made_by(current, "MatMul")
    return matmul is not None and all(analysis[item].rank == len(shape) for item in matmul.inputs)


class _Transposes:
    """Makes tensors of one graph with their last two axes swapped, from changed copies of the nodes before them."""

    def __init__(self, editor: Editor, analysis: Analysis, shapes: ShapeBuilder) -> None:
        self._editor = editor
        self._analysis = analysis
        self._shapes = shapes
        self._swaps: dict[str, gs.Tensor] = {}

    def __call__(self, softmax: gs.Node) -> None:
        weights = softmax.outputs[0]
        result = self._nodes(weights).op("Softmax", self.swap(softmax.inputs[0]), axis=-1)
        self._join(weights, result)
        if weights.outputs or is_output(self._editor.graph, weights):
            perm = _swap(self._analysis[weights].rank or 0)
            self._editor.op("Transpose", result, perm=perm, output=weights)
        softmax.outputs.clear()

    def _join(self, weights: gs.Tensor, result: gs.Tensor) -> None:
        """Replaces nodes that transpose the weights back by a Reshape of the result."""
        for first in list(weights.outputs):
            chain, last = list[gs.Node](), first
            best: gs.Node | None = None
            while is_standard(last, "Transpose", *RESHAPES):
                chain.append(last)
                best = last if self._is_view(weights, chain) else best
                readers = [node for node in last.outputs[0].outputs if not is_standard(node, "Shape")]
                if len(readers) != 1:
                    break
                last = readers[0]
            shape = None if best is None else self._analysis[best.outputs[0]].shape
            if best is not None and shape is not None:
                target = self._shapes.build(list(shape))
                self._editor.redirect(best.outputs[0], self._nodes(best.outputs[0]).in_shape(result, target))

    def _is_view(self, weights: gs.Tensor, chain: Sequence[gs.Node]) -> bool:
        """Whether nodes keep the order of the elements of the weights with their last two axes swapped."""
        before = self._analysis[weights].shape or ()
        for batch, length in _SIZES:
            sizes = _numbers(before, batch, length)
            if sizes is None:
                return False
            values = np.arange(prod(sizes)).reshape(sizes).swapaxes(-1, -2)
            for node in chain:
                new_shape = _numbers(self._analysis[node.outputs[0]].shape, batch, length)
                if new_shape is None:
                    return False
                values = (
                    values.transpose(node.attrs.get("perm")) if node.op == "Transpose" else values.reshape(new_shape)
                )
            if not np.array_equal(values.reshape(-1), np.arange(values.size)):
                return False
        return True

    def swap(self, tensor: gs.Tensor) -> gs.Tensor:
        """The tensor with its last two axes swapped."""
        if tensor.name not in self._swaps:
            self._swaps[tensor.name] = self._make(tensor)
        return self._swaps[tensor.name]

    def _make(self, tensor: gs.Tensor) -> gs.Tensor:
        shape, node = self._analysis[tensor].shape, producer(tensor)
        if shape is None:
            raise AssertionError(f"'{tensor.name}' has no known shape")
        if not shape or all(size == Poly.of(1) for size in shape[-2:]):
            return tensor
        if len(shape) == 1:
            return self._nodes(tensor).unsqueeze(tensor, 1)
        operands = [] if node is None else [self._analysis[item].shape for item in node.inputs]
        if node is not None and is_standard(node, *ELEMENTWISE) and None not in operands and node.op != "PRelu":
            return self._nodes(tensor).op(node.op, *[self.swap(item) for item in node.inputs], **node.attrs)
        if node is not None and is_standard(node, "MatMul") and all(len(item or ()) == len(shape) for item in operands):
            return self._nodes(tensor).op("MatMul", *[self.swap(item) for item in node.inputs[::-1]])
        if node is not None and is_standard(node, "Transpose"):
            perm = permutation(node, len(shape))
            return self._transpose(node.inputs[0], [*perm[:-2], perm[-1], perm[-2]])
        source = square_source(self._analysis, tensor)
        if source is not None:
            return self._nodes(tensor).in_shape(self.swap(source), self._shapes.build(list(shape)))
        return self._transpose(tensor, _swap(len(shape)))

    def _transpose(self, tensor: gs.Tensor, perm: list[int]) -> gs.Tensor:
        return tensor if perm == sorted(perm) else self._nodes(tensor).op("Transpose", tensor, perm=perm)

    def _nodes(self, like: gs.Tensor) -> Editor:
        return self._editor.with_stem(f"{like.name}_swapped")


def _swap(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _numbers(shape: Shape | None, batch: int, length: int) -> list[int] | None:
    """The sizes of a shape for this B and S; None where it has other unknown sizes."""
    if shape is None or not is_of_sizes(shape):
        return None
    return [size.evaluate(lambda name: {"B": batch, "S": length}[name]) for size in shape]
