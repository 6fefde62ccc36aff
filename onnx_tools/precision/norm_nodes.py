# SPDX-License-Identifier: Apache-2.0
"""PadfreeLayerNorm as standard operators, for the few that have to stay float32 in a half precision graph."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis.graph import Editor, node_name, opset, padfree_attributes
from ..analysis.node_builder import NodeBuilder
from ..errors import RewriteError

LAYER_NORM_OPSET = 17
AXES_INPUT_OPSET = 18  # from here on ReduceMean takes its axes as an input


def add_standard_norm(editor: Editor, node: gs.Node) -> None:
    """Adds nodes that compute what a PadfreeLayerNorm node does, and make its outputs.

    Raises RewriteError for opsets without LayerNormalization.
    """
    attributes, version = padfree_attributes(node), opset(editor.graph)
    if version < LAYER_NORM_OPSET:
        raise RewriteError(
            f"PadfreeLayerNorm '{node.name}' has to stay float32, which opset {version} has no operator for; export "
            f"the model with opset {LAYER_NORM_OPSET}, or choose precision bf16 or fp32"
        )
    new, stem = NodeBuilder(editor, node_name(node), np.float32), node_name(node)
    (total, *inputs), (result, *sums) = node.inputs, node.outputs
    for _ in range(int(attributes["has_bias"]) + int(attributes["has_residual"])):
        total = new.op("Add", total, inputs.pop(0))
    if attributes["has_sum"]:
        editor.node("Identity", [total], stem=f"{stem}_sum", output=sums[0])
    if attributes["rms"]:
        _add_rms_norm(editor, new, total, inputs, result, float(attributes["epsilon"]))
    else:
        attrs = {"axis": -1, "epsilon": float(attributes["epsilon"])}
        editor.node("LayerNormalization", [total, *inputs], stem=f"{stem}_norm", attrs=attrs, output=result)


def _add_rms_norm(
    editor: Editor, new: NodeBuilder, total: gs.Tensor, factors: list[gs.Tensor], result: gs.Tensor, epsilon: float
) -> None:
    """The root mean square norm of rows, times gamma, plus beta where there is one."""
    square = new.op("Mul", total, total)
    takes_axes = opset(editor.graph) >= AXES_INPUT_OPSET
    mean = new.op("ReduceMean", square, new.integers(-1)) if takes_axes else new.op("ReduceMean", square, axes=[-1])
    root = new.op("Sqrt", new.op("Add", mean, new.number(epsilon)))
    normal, gamma, beta = new.op("Div", total, root), factors[0], factors[1:]
    if beta:
        editor.node("Add", [new.op("Mul", normal, gamma), *beta], stem=f"{result.name}_shifted", output=result)
    else:
        editor.node("Mul", [normal, gamma], stem=f"{result.name}_scaled", output=result)
