# SPDX-License-Identifier: Apache-2.0
"""Means over one axis that are written as sums divided by a number, or without their axis, which comes back later."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis.graph import Editor, is_standard, producer
from ..analysis.symbolic import Analysis
from ..precision.norm_nodes import AXES_INPUT_OPSET
from .softmaxes import VIEWS, reduction_of

_SUMS = ("ReduceSum", "ReduceSumSquare")
_Viewed = dict[str, gs.Node | None]  # a view's result -> what makes the numbers behind it
_ROUNDING = 2.0**-23  # the share by which one over a number misses it in float32


def write_means(graph: gs.Graph, analysis: Analysis) -> bool:
    """Makes a ReduceMean that keeps its axis of whatever is one; returns whether there was any."""
    editor, found = Editor(graph), False
    viewed: _Viewed = {}
    for node in list(graph.nodes):
        mean = _quotient(analysis, node, viewed) or _with_axis(analysis, node, viewed)
        if mean is not None:
            viewed.pop(node.outputs[0].name, None)
            _replace(editor, node, *mean)
            found = True
    return found


def _quotient(analysis: Analysis, node: gs.Node, viewed: _Viewed) -> tuple[gs.Node, int] | None:
    """The sum over one axis, and the axis, of a node that divides it by how many numbers were added."""
    if not is_standard(node, "Div", "Mul") or not (analysis[node.outputs[0]].dtype or "").startswith("float"):
        return None  # integers lose what is behind the point
    for total, other in (node.inputs, node.inputs[::-1])[: 1 if node.op == "Div" else 2]:
        found, number = _reduced(analysis, total, viewed, *_SUMS), analysis[other].scalar()
        if found is None or number is None or analysis[total].shape != analysis[node.outputs[0]].shape:
            continue
        size = (analysis[found[0].inputs[0]].shape or ())[found[1]].constant()
        count = number if node.op == "Div" else 1 / number if number else 0
        if size is not None and abs(count - size) <= size * _ROUNDING:
            return found
    return None


def _with_axis(analysis: Analysis, node: gs.Node, viewed: _Viewed) -> tuple[gs.Node, int] | None:
    """The mean that a node gives the axis back which the mean has not kept."""
    if not is_standard(node, *VIEWS):
        return None
    found = _reduced(analysis, node.outputs[0], viewed, "ReduceMean")
    return None if found is None or found[0].attrs.get("keepdims", 1) else found


def _reduced(analysis: Analysis, tensor: gs.Tensor, viewed: _Viewed, *ops: str) -> tuple[gs.Node, int] | None:
    """The node of one of the operators whose result, with its axis, a tensor is, and the axis."""
    node = _behind_views(tensor, viewed)
    if node is None or not is_standard(node, *ops):
        return None
    axis = reduction_of(analysis, tensor, node.op, node.inputs[0])
    return None if axis is None else (node, axis)


def _behind_views(tensor: gs.Tensor, viewed: _Viewed) -> gs.Node | None:
    """What makes the numbers that a tensor is a view of; long chains of views are walked once."""
    passed, node = list[str](), producer(tensor)
    while node is not None and is_standard(node, *VIEWS):
        name = node.outputs[0].name
        if name in viewed:
            node = viewed[name]
            break
        passed.append(name)
        node = producer(node.inputs[0])
    viewed.update(dict.fromkeys(passed, node))
    return node


def _replace(editor: Editor, node: gs.Node, reduced: gs.Node, axis: int) -> None:
    source, name = reduced.inputs[0], node.name or "mean"
    if reduced.op == "ReduceSumSquare":
        source = editor.node("Mul", [source, source], stem=f"{name}_square", dtype=source.dtype)
    inputs, attrs = [source], dict[str, object](keepdims=1)
    if int(editor.graph.opset) < AXES_INPUT_OPSET:
        attrs["axes"] = [axis]
    else:
        inputs.append(editor.constant("axes", np.asarray([axis], np.int64)))
    output = editor.take_over(node.outputs[0])
    editor.node("ReduceMean", inputs, stem=output.name, attrs=attrs, output=output)
    node.outputs.clear()
