# SPDX-License-Identifier: Apache-2.0
"""Scores that are kept within bounds which none of them reaches."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis import argument, made_by
from ...analysis.symbolic import Analysis

_FAR = 65504.0  # the largest number of float16


def before_bounds(analysis: Analysis, tensor: gs.Tensor) -> gs.Tensor | None:
    """The tensor before it is kept within bounds that no score reaches, such as a type's lowest number; or None."""
    node = made_by(tensor, "Max", "Min", "Clip")
    if node is None:
        return None
    if node.op == "Clip":
        low, high = (argument(node, position) for position in (1, 2))
        limits = [(item, sign) for item, sign in ((low, -1), (high, 1)) if item is not None]
        return node.inputs[0] if all(_is_far(analysis, item, sign) for item, sign in limits) else None
    if len(node.inputs) != 2:
        return None
    sign = -1 if node.op == "Max" else 1
    for this, other in ((0, 1), (1, 0)):
        whole = analysis[node.inputs[this]].shape == analysis[tensor].shape
        if whole and _is_far(analysis, node.inputs[other], sign):
            return node.inputs[this]
    return None


def _is_far(analysis: Analysis, bound: gs.Tensor, sign: int) -> bool:
    """Whether a lower (-1) or upper (1) bound is at least as far from 0 as half precision's largest number."""
    number = analysis[bound].scalar()
    return number is not None and number * sign >= _FAR
