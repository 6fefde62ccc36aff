# SPDX-License-Identifier: Apache-2.0
"""Softmaxes that are written out, with exponentials or weights that are divided by their sum, as one Softmax."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, is_standard, made_by, node_name, producer
from ...analysis.symbolic import Analysis, axis_of, broadcast_shape
from ...match.chains import is_mask, reduction_of

_LOWEST = float(np.finfo(np.float32).min)
_TINY = 1e-6  # the largest guard of sums, which are at least 1 where a row is not padded


@dataclass(frozen=True)
class _SoftmaxWeights:
    """Weights not yet divided by their sum: exp of `scores`, or a Softmax of them, times masks of 0 and 1."""

    scores: gs.Tensor
    masks: tuple[gs.Tensor, ...] = ()


def write_softmaxes(graph: gs.Graph, analysis: Analysis) -> bool:
    """Replaces whatever is a Softmax over one axis; returns whether there was any.

    A mask by which weights are multiplied before they are divided by their sum moves before the Softmax, as a choice of
    the lowest number. Only rows without any kept element differ, for which there are no meaningful weights.
    """
    editor, changed = Editor(graph), False
    for node in list(graph.nodes):
        if is_standard(node, "Softmax"):
            changed = _shift(analysis, node) or changed
            continue
        logarithms = made_by(node.inputs[0], "LogSoftmax") if is_standard(node, "Exp") else None
        if logarithms is not None:
            node.op, node.inputs, node.attrs = "Softmax", list(logarithms.inputs), dict(logarithms.attrs)
            changed = True
            continue
        total = _divisor(analysis, node)
        sums = None if total is None else reduction_of(analysis, total, "ReduceSum", node.inputs[0])
        weights = None if sums is None else _weights(analysis, node.inputs[0], sums)
        if total is not None and sums is not None and weights is not None:
            _replace(editor, analysis, node, total, weights, sums)
            changed = True
    return changed


def _replace(
    editor: Editor, analysis: Analysis, node: gs.Node, total: gs.Tensor, weights: _SoftmaxWeights, axis: int
) -> None:
    scores, result = weights.scores, node.outputs[0]
    for mask in weights.masks:
        is_token = mask if analysis[mask].dtype == "bool" else editor.cast(mask, np.bool_, "softmax_kept")
        lowest = editor.constant("softmax_lowest", np.asarray(_LOWEST, np.float32))
        scores = editor.op("Where", is_token, scores, lowest, stem="softmax_scores")
    guards = [reader for reader in result.outputs if _guards(reader, result, total)]
    softmax = editor.op("Softmax", scores, stem=f"{node_name(node)}_softmax", axis=axis)
    for tensor in (result, *(guard.outputs[0] for guard in guards)):
        editor.redirect(tensor, softmax)


def _shift(analysis: Analysis, softmax: gs.Node) -> bool:
    """Drops the subtraction of the largest score before a Softmax, which does that itself; returns if there was one."""
    rank = analysis[softmax.inputs[0]].rank
    if rank is None:
        return False
    unshifted = _without_shift(analysis, softmax.inputs[0], axis_of(softmax, rank))
    changed = unshifted is not softmax.inputs[0]
    softmax.inputs[0] = unshifted
    return changed


def _divisor(analysis: Analysis, node: gs.Node) -> gs.Tensor | None:
    """What a node divides by, without its guard against 0: Where(sum > 0, sum, 1), sum + tiny or max(sum, tiny)."""
    if is_standard(node, "Mul"):
        inverse = made_by(node.inputs[1], "Reciprocal")
        return None if inverse is None else inverse.inputs[0]
    if not is_standard(node, "Div"):
        return None
    tiny = made_by(node.inputs[1], "Add", "Clip", "Max")
    if tiny is not None and len(tiny.inputs) == 2:
        numbers = [analysis[item].scalar() for item in tiny.inputs]
        index = next(
            (index for index, number in enumerate(numbers) if number is not None and 0 < number <= _TINY), None
        )
        return node.inputs[1] if index is None else tiny.inputs[1 - index]
    guard = made_by(node.inputs[1], "Where")
    if guard is not None and _is_positive(guard.inputs[0], guard.inputs[1]):
        return guard.inputs[1]
    return node.inputs[1]


def _is_positive(test: gs.Tensor, total: gs.Tensor) -> bool:
    """Whether a test is total > 0."""
    node = made_by(test, "Greater")
    if node is None or node.inputs[0] is not total or not isinstance(node.inputs[1], gs.Constant):
        return False
    return not np.any(node.inputs[1].values)


def _guards(node: gs.Node, quotient: gs.Tensor, total: gs.Tensor) -> bool:
    """Whether a node takes the quotient where the sum is above 0: that is so in all rows that keep anything."""
    return is_standard(node, "Where") and node.inputs[1] is quotient and _is_positive(node.inputs[0], total)


def _weights(analysis: Analysis, tensor: gs.Tensor, axis: int) -> _SoftmaxWeights | None:
    node = producer(tensor)
    if node is None:
        return None
    if is_standard(node, "Exp"):  # the largest score has to be 0: others may overflow where a Softmax does not
        scores = _without_shift(analysis, node.inputs[0], axis)
        return None if scores is node.inputs[0] else _SoftmaxWeights(scores)
    if is_standard(node, "Softmax") and axis_of(node, analysis[tensor].rank) == axis:
        return _SoftmaxWeights(node.inputs[0])
    if not is_standard(node, "Mul"):
        return None
    for one, two in (node.inputs, node.inputs[::-1]):
        weights = _weights(analysis, one, axis) if is_mask(analysis, two) else None
        if weights is not None:
            shape = analysis[weights.scores].shape
            if shape is not None and broadcast_shape([shape, analysis[two].shape]) == shape:
                return _SoftmaxWeights(weights.scores, (*weights.masks, two))
    return None


def _without_shift(analysis: Analysis, scores: gs.Tensor, axis: int) -> gs.Tensor:
    """The scores before the largest is subtracted from all of them; the scores themselves where it is not."""
    node = made_by(scores, "Sub")
    if node is None or reduction_of(analysis, node.inputs[1], "ReduceMax", node.inputs[0]) != axis:
        return scores
    return node.inputs[0]
