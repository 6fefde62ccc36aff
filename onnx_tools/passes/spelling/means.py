# SPDX-License-Identifier: Apache-2.0
"""Means over one axis that are written as sums divided by a number, as MatMuls, or without their axis."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis import Editor, is_standard, made_by, producer
from ...analysis.symbolic import Analysis
from ...match.chains import VIEWS, reduction_of, scale_of

_SUMS = ("ReduceSum", "ReduceSumSquare")
_Origins = dict[str, gs.Node | None]  # a view's result -> the node that makes its numbers
_MOST_FACTORS = 4
_ROUNDING = 2.0**-23  # the relative error of 1 / number in float32


def write_sums(graph: gs.Graph, analysis: Analysis) -> bool:
    """Makes a ReduceSum or a ReduceMean of MatMuls with columns of equal numbers; returns whether there was any."""
    editor = Editor(graph)
    changes = [_write_matmul(editor, analysis, node) for node in list(graph.nodes)]
    return any(changes)


def write_means(graph: gs.Graph, analysis: Analysis) -> bool:
    """Makes a ReduceMean of whatever is a mean over one axis; returns whether there was any.

    It keeps its axis where the mean has it, or where a view gives it back.
    """
    editor, changed = Editor(graph), False
    origins: _Origins = {}
    for node in list(graph.nodes):
        mean = _quotient(analysis, node, origins) or _with_axis(analysis, node, origins)
        if mean is not None:
            origins.pop(node.outputs[0].name, None)
            _replace(editor, node, *mean)
            changed = True
    return changed


def _write_matmul(editor: Editor, analysis: Analysis, node: gs.Node) -> bool:
    """Writes a MatMul by a column of ones as a sum, and by a column of 1 / W as the mean of W numbers."""
    column = node.inputs[1] if is_standard(node, "MatMul") else None
    rank = None if column is None else analysis[node.inputs[0]].rank
    if not isinstance(column, gs.Constant) or tuple(column.shape[1:]) not in ((), (1,)) or rank is None or rank < 2:
        return False
    size = int(column.shape[0]) if column.shape else 0
    first = float(column.values.reshape(-1)[0]) if size else 0.0
    is_mean = abs(first * size - 1) <= _ROUNDING
    if not (is_mean or first == 1) or not (column.values == column.values.reshape(-1)[0]).all():
        return False
    _reduce(editor, node, "ReduceMean" if is_mean else "ReduceSum", node.inputs[0], rank - 1, len(column.shape) == 2)
    return True


def _quotient(analysis: Analysis, node: gs.Node, origins: _Origins) -> tuple[gs.Node, int, bool] | None:
    """The sum over one axis, the axis, and whether it is kept, of a node that divides by how many numbers were added.

    Several numbers may divide and multiply it, as where the variance of a sample becomes that of a population.
    """
    if not is_standard(node, "Div", "Mul") or not (analysis[node.outputs[0]].dtype or "").startswith("float"):
        return None  # dividing integers drops the fraction
    total, factor = node.outputs[0], 1.0
    for _ in range(_MOST_FACTORS):
        scaled = scale_of(analysis, total)
        if scaled is None:
            break
        total, factor = scaled[0], factor * scaled[1]
    shape = analysis[node.outputs[0]].shape
    if total is node.outputs[0] or analysis[total].shape != shape or shape is None:
        return None
    reduction = _reduction(analysis, total, origins, *_SUMS, "ReduceMean")
    keepdims = reduction is not None
    reduction = reduction or _without_axis(analysis, total, *_SUMS, "ReduceMean")
    if reduction is None:
        return None
    size = (analysis[reduction[0].inputs[0]].shape or ())[reduction[1]].constant()
    expected_factor = None if size is None or not size else 1.0 if reduction[0].op == "ReduceMean" else 1 / size
    if expected_factor is None or abs(factor - expected_factor) > expected_factor * _ROUNDING * 2:
        return None
    return (*reduction, keepdims)


def _without_axis(analysis: Analysis, tensor: gs.Tensor, *ops: str) -> tuple[gs.Node, int] | None:
    """The node that makes a tensor and does not keep the one axis that it reduces, and the axis."""
    node = made_by(tensor, *ops)
    if node is None or node.attrs.get("keepdims", 1):
        return None
    axes = analysis.axes_along(node)
    return None if axes is None or len(axes) != 1 else (node, axes[0])


def _with_axis(analysis: Analysis, node: gs.Node, origins: _Origins) -> tuple[gs.Node, int, bool] | None:
    """The mean to which a view gives back the axis that the mean has not kept; None for other nodes."""
    if not is_standard(node, *VIEWS):
        return None
    reduction = _reduction(analysis, node.outputs[0], origins, "ReduceMean")
    return None if reduction is None or reduction[0].attrs.get("keepdims", 1) else (*reduction, True)


def _reduction(analysis: Analysis, tensor: gs.Tensor, origins: _Origins, *ops: str) -> tuple[gs.Node, int] | None:
    """The node of one of the operators whose result a tensor is, with the reduced axis kept, and that axis; or None."""
    node = _through_views(tensor, origins)
    if node is None or not is_standard(node, *ops):
        return None
    axis = reduction_of(analysis, tensor, node.op, node.inputs[0])
    return None if axis is None else (node, axis)


def _through_views(tensor: gs.Tensor, origins: _Origins) -> gs.Node | None:
    """What makes the numbers that a tensor is a view of; long chains of views are walked once."""
    names, node = list[str](), producer(tensor)
    while node is not None and is_standard(node, *VIEWS):
        name = node.outputs[0].name
        if name in origins:
            node = origins[name]
            break
        names.append(name)
        node = producer(node.inputs[0])
    origins.update(dict.fromkeys(names, node))
    return node


def _replace(editor: Editor, node: gs.Node, reduction: gs.Node, axis: int, keepdims: bool) -> None:
    source, name = reduction.inputs[0], node.name or "mean"
    if reduction.op == "ReduceSumSquare":
        source = editor.op("Mul", source, source, stem=f"{name}_square")
    _reduce(editor, node, "ReduceMean", source, axis, keepdims)


def _reduce(editor: Editor, node: gs.Node, op: str, source: gs.Tensor, axis: int, keepdims: bool) -> None:
    """Replaces a node by a reduction."""
    editor.along(op, source, axis, output=node.outputs[0], keepdims=int(keepdims))
