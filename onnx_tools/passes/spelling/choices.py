# SPDX-License-Identifier: Apache-2.0
"""Choices that are written as sums of products, c * x + (1 - c) * y, as Where: tf2onnx does so below opset 16."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, find_standard, made_by
from ...analysis.symbolic import Analysis


def write_choices(graph: gs.Graph, analysis: Analysis) -> bool:
    """Makes a Where of each; returns whether there was any. Infinities that are not chosen no longer make it NaN."""
    editor, changed = Editor(graph), False
    for node in find_standard(graph, "Add"):
        parts = [_product(analysis, tensor) for tensor in node.inputs]
        for one, two in (parts, parts[::-1]):
            if one is None or two is None or not _is_inverse(one[0], two[0]):
                continue
            editor.op("Where", one[0], one[1], two[1], output=node.outputs[0])
            changed = True
            break
    return changed


def _product(analysis: Analysis, tensor: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor] | None:
    """(c, x) where a tensor is c * x with a boolean c; None for others."""
    node = made_by(tensor, "Mul")
    for truth, other in () if node is None else (node.inputs, node.inputs[::-1]):
        cast = made_by(truth, "Cast")
        if cast is not None and analysis[cast.inputs[0]].dtype == np.dtype(np.bool_).name:
            return cast.inputs[0], other
    return None


def _is_inverse(truth: gs.Tensor, other: gs.Tensor) -> bool:
    """Whether `other` is the Not of `truth`."""
    node = made_by(other, "Not")
    return node is not None and node.inputs[0] is truth
