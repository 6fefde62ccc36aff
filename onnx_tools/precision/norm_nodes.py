# SPDX-License-Identifier: Apache-2.0
"""PadfreeLayerNorm as standard operators, for the few that have to stay float32 in a half precision graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..errors import RewriteError
from ..operators import node_attributes, opset_of

LAYER_NORM_OPSET = 17
AXES_INPUT_OPSET = 18  # from here on ReduceMean takes its axes as an input


def standard_norm(model: ModelProto, node: NodeProto) -> tuple[list[NodeProto], list[TensorProto]]:
    """Nodes and constants that compute what a PadfreeLayerNorm node of the model does.

    Raises RewriteError for opsets without LayerNormalization.
    """
    attributes, opset = node_attributes(node), opset_of(model)
    if opset < LAYER_NORM_OPSET:
        raise RewriteError(
            f"PadfreeLayerNorm '{node.name}' has to stay float32, which opset {opset} has no operator for; export the "
            f"model with opset {LAYER_NORM_OPSET}, or choose precision bf16 or fp32"
        )
    inputs = list(node.input)
    stem = node.name or node.output[0]
    nodes: list[NodeProto] = []
    total = inputs.pop(0)
    summands = [inputs.pop(0) for name in ("has_bias", "has_residual") if attributes[name]]
    for position, name in enumerate(summands):
        last = position == len(summands) - 1 and attributes["has_sum"]
        result = node.output[1] if last else f"{stem}.sum_{position}"
        nodes.append(helper.make_node("Add", [total, name], [result], name=f"{stem}.add_{position}"))
        total = result
    if attributes["has_sum"] and not summands:
        nodes.append(helper.make_node("Identity", [total], [node.output[1]], name=f"{stem}.sum"))
    epsilon = float(attributes["epsilon"])
    if not attributes["rms"]:
        norm = helper.make_node(
            "LayerNormalization", [total, *inputs], [node.output[0]], name=f"{stem}.norm", axis=-1, epsilon=epsilon
        )
        return [*nodes, norm], []
    constants = [numpy_helper.from_array(np.asarray(epsilon, np.float32), f"{stem}.epsilon")]
    mean_inputs: list[str] = [f"{stem}.square"]
    mean_attributes: dict[str, Any] = {"axes": [-1]}
    if opset >= AXES_INPUT_OPSET:
        constants.append(numpy_helper.from_array(np.asarray([-1], np.int64), f"{stem}.axes"))
        mean_inputs, mean_attributes = [*mean_inputs, f"{stem}.axes"], {}
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Mul", [total, total], "square", {}),
        ("ReduceMean", mean_inputs, "mean", mean_attributes),
        ("Add", [f"{stem}.mean", f"{stem}.epsilon"], "variance", {}),
        ("Sqrt", [f"{stem}.variance"], "root", {}),
        ("Div", [total, f"{stem}.root"], "normal", {}),
        ("Mul", [f"{stem}.normal", inputs[0]], "scaled", {}),
    ]
    steps += [("Add", [f"{stem}.scaled", inputs[1]], "shifted", {})] if attributes["has_beta"] else []
    for op, operands, result, extra in steps:
        nodes.append(helper.make_node(op, operands, [f"{stem}.{result}"], name=f"{stem}.{result}", **extra))
    nodes[-1].output[0] = node.output[0]
    return nodes, constants
