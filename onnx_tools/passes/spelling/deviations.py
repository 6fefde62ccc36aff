# SPDX-License-Identifier: Apache-2.0
"""Variances that are not written as means of squares of x - mean(x), and roots that are not written as Sqrt."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, is_standard, made_by
from ...analysis.symbolic import Analysis


def write_deviations(graph: gs.Graph, analysis: Analysis) -> bool:
    """Makes mean((x - mean(x))^2) of E[x^2] - E[x]^2, and Sqrt of powers; returns whether there was any.

    It runs before norms are looked for, and after every mean over one axis has become a ReduceMean. Flax computes
    variances from moments; in exact numbers both are the same, but only the form made here is accurate where the mean
    is large.
    """
    editor, any_changed = Editor(graph), False
    for node in list(graph.nodes):
        if len(node.outputs) == 1 and node.inputs:
            changed = _square(node) or _variance(editor, node) or _at_least_zero(editor, analysis, node)
            any_changed = changed or _root(editor, analysis, node) or any_changed
    return any_changed


def _square(node: gs.Node) -> bool:
    """Writes |x| * |x| as x * x; returns whether it did."""
    size = made_by(node.inputs[0], "Abs") if is_standard(node, "Mul", "Pow") else None
    if size is None or (node.op == "Mul" and node.inputs[1] is not node.inputs[0]) or not _is_even(node):
        return False
    node.inputs = [size.inputs[0], size.inputs[0] if node.op == "Mul" else node.inputs[1]]
    return True


def _is_even(node: gs.Node) -> bool:
    """Whether a node multiplies a number by itself, or raises it to the power of 2."""
    power = node.inputs[1]
    return node.op == "Mul" or (isinstance(power, gs.Constant) and power.values.size == 1 and bool(power.values == 2))


def _base_of_square(tensor: gs.Tensor) -> gs.Tensor | None:
    """The tensor x where `tensor` is x * x; None for others."""
    node = made_by(tensor, "Mul", "Pow")
    if node is None or (node.op == "Mul" and node.inputs[0] is not node.inputs[1]) or not _is_even(node):
        return None
    return node.inputs[0]


def _axes(node: gs.Node) -> list[int] | None:
    """The axes that a ReduceMean reduces and keeps; None where they are not kept, or not known."""
    axes = node.attrs.get("axes")
    if axes is None and len(node.inputs) > 1 and isinstance(node.inputs[1], gs.Constant):
        axes = node.inputs[1].values.reshape(-1).tolist()
    return [int(axis) for axis in axes] if axes is not None and node.attrs.get("keepdims", 1) else None


def _variance(editor: Editor, node: gs.Node) -> bool:
    """Rewrites mean(x * x) - mean(x) * mean(x) where there is x - mean(x), too: otherwise it is no part of a norm."""
    squares = made_by(node.inputs[0], "ReduceMean") if is_standard(node, "Sub") else None
    x = None if squares is None else _base_of_square(squares.inputs[0])
    centre = None if x is None else _base_of_square(node.inputs[1])
    mean = None if centre is None else made_by(centre, "ReduceMean")
    if squares is None or x is None or mean is None or mean.inputs[0] is not x or _axes(squares) is None:
        return False
    rest = next((item for item in x.outputs if _is_without_mean(item, x, mean)), None)
    if rest is None:
        return False
    rank = None if x.shape is None else len(x.shape)
    if _nonnegative(_axes(mean), rank) != _nonnegative(_axes(squares), rank):
        return False
    square = editor.op("Mul", *[rest.outputs[0]] * 2, stem=f"{node.outputs[0].name}_square")
    editor.op("ReduceMean", square, *squares.inputs[1:], output=node.outputs[0], **squares.attrs)
    return True


def _is_without_mean(node: gs.Node, x: gs.Tensor, mean: gs.Node) -> bool:
    """Whether a node subtracts the mean of x from x; another node than `mean` may compute that mean as well."""
    other = made_by(node.inputs[1], "ReduceMean") if is_standard(node, "Sub") and node.inputs[0] is x else None
    return other is not None and other.inputs[0] is x and _axes(other) is not None and _axes(other) == _axes(mean)


def _nonnegative(axes: list[int] | None, rank: int | None) -> list[int] | None:
    return axes if axes is None or rank is None else [axis % rank for axis in axes]


def _at_least_zero(editor: Editor, analysis: Analysis, node: gs.Node) -> bool:
    """Removes a lower bound of 0 on a mean of squares, which is never below it; returns whether there was one."""
    if not is_standard(node, "Clip", "Max") or len(node.inputs) != 2:
        return False
    for tensor, other in (node.inputs, node.inputs[::-1])[: 1 if node.op == "Clip" else 2]:
        mean = made_by(tensor, "ReduceMean")
        if mean is not None and analysis[other].scalar() == 0 and _base_of_square(mean.inputs[0]) is not None:
            editor.redirect(node.outputs[0], tensor)
            return True
    return False


def _root(editor: Editor, analysis: Analysis, node: gs.Node) -> bool:
    """Writes v ** 0.5, v ** -0.5 and sqrt(1 / v) with sqrt(v), for sums v with a number above 0: variance + epsilon."""
    power = analysis[node.inputs[1]].scalar() if is_standard(node, "Pow") else None
    inverse = made_by(node.inputs[0], "Reciprocal", "Div") if is_standard(node, "Sqrt") else None
    if inverse is not None and inverse.op == "Div" and analysis[inverse.inputs[0]].scalar() != 1:
        return False
    if power not in (0.5, -0.5) and inverse is None:
        return False
    source = node.inputs[0] if inverse is None else inverse.inputs[-1]
    epsilon_node = made_by(source, "Add")
    numbers = [] if epsilon_node is None else [analysis[item].scalar() for item in epsilon_node.inputs]
    if not any(number is not None and number > 0 for number in numbers):
        return False
    root = output = node.outputs[0]
    if power != 0.5:
        root = editor.variable(f"{output.name}_root", np.dtype(source.dtype or np.float32))
        editor.op("Reciprocal", root, output=output)
    editor.op("Sqrt", source, output=root)
    return True
