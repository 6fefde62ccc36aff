# SPDX-License-Identifier: Apache-2.0
"""PadfreeLayerNorm as standard operators, for the few that have to stay float32 in a half precision graph."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import Editor, node_name, opset, padfree_attributes
from ..errors import RewriteError

LAYER_NORM_OPSET = 17


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
    new = editor.with_stem(node_name(node))
    (total, *inputs), (result, *sums) = node.inputs, node.outputs
    for _ in range(int(attributes["has_bias"]) + int(attributes["has_residual"])):
        total = new.op("Add", total, inputs.pop(0))
    if attributes["has_sum"]:
        new.op("Identity", total, output=sums[0])
    if attributes["rms"]:
        _add_rms_norm(new, total, inputs, result, float(attributes["epsilon"]))
    else:
        epsilon = float(attributes["epsilon"])
        new.op("LayerNormalization", total, *inputs, output=result, axis=-1, epsilon=epsilon)


def _add_rms_norm(new: Editor, total: gs.Tensor, factors: list[gs.Tensor], result: gs.Tensor, epsilon: float) -> None:
    """The root mean square norm of rows, times gamma, plus beta where there is one."""
    mean = new.along("ReduceMean", new.op("Mul", total, total), -1)
    root = new.op("Sqrt", new.op("Add", mean, new.scalar(epsilon, np.float32)))
    normal, gamma, beta = new.op("Div", total, root), factors[0], factors[1:]
    if beta:
        new.op("Add", new.op("Mul", normal, gamma), *beta, output=result)
    else:
        new.op("Mul", normal, gamma, output=result)
