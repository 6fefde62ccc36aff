# SPDX-License-Identifier: Apache-2.0
"""Parts of a Softmax that is written out: sums and maxima over one axis, and masks of 0 and 1."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis import RESHAPES, is_standard, producer
from ...analysis.symbolic import Analysis, Element, Index, Poly, evaluate, leaves_of

VIEWS = RESHAPES | {"Expand", "Identity"}


def reduction_of(analysis: Analysis, tensor: gs.Tensor, op: str, source: gs.Tensor) -> int | None:
    """The one axis over which `op` reduces `source` to a tensor that keeps this axis with size 1; None for others."""
    shape, whole = analysis[tensor].shape, analysis[source].shape
    node = producer(tensor)
    while node is not None and is_standard(node, *VIEWS) and _is_view(analysis, node):
        node = producer(node.inputs[0])
    if node is None or not is_standard(node, op) or node.inputs[0] is not source or not shape or not whole:
        return None
    axes = analysis.axes_along(node)
    if axes is None or len(axes) != 1:
        return None
    axis = axes[0]
    return axis if shape == (*whole[:axis], Poly.of(1), *whole[axis + 1 :]) else None


def _is_view(analysis: Analysis, node: gs.Node) -> bool:
    """Whether a node leaves the sizes other than 1 as they are."""
    shapes = [analysis[item].shape for item in (node.inputs[0], node.outputs[0])]
    one, two = ([size for size in shape or () if size != Poly.of(1)] for shape in shapes)
    return None not in shapes and one == two


def is_mask(analysis: Analysis, tensor: gs.Tensor) -> bool:
    """Whether a tensor is made of one element of an input alone, and is 0 and 1 where that is 0 and 1, or 1 and 0."""
    expr = analysis[tensor].expr
    if expr is None:
        return False
    elements = leaves_of(expr, Element)
    if len(elements) != 1 or any(leaf.poly.constant() is None for leaf in leaves_of(expr, Index)):
        return False
    try:
        values = {float(evaluate(expr, dict.fromkeys(elements, value))) for value in (0, 1)}
    except ValueError:
        return False
    return values == {0.0, 1.0}
