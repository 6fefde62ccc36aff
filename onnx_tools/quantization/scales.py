# SPDX-License-Identifier: Apache-2.0
"""Checks the scales in a file, which anybody may have written."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ..errors import RewriteError
from .layers import OPERATOR

_POSITIONS = {OPERATOR: 2, "QuantizeLinear": 1, "DequantizeLinear": 1}
"""The position of the scale among a node's inputs."""


def check_scales(graph: gs.Graph) -> None:
    """Raises RewriteError for a GEMM in e4m3, or a Q/DQ node, whose scale is not finite and above 0."""
    for node in graph.nodes:
        position = _POSITIONS.get(node.op)
        if position is None or len(node.inputs) <= position or not isinstance(node.inputs[position], gs.Constant):
            continue
        tensor = node.inputs[position]
        scale = np.asarray(tensor.values, np.float64)
        wrong = ~(np.isfinite(scale) & (scale > 0))
        if wrong.any():
            at = int(np.flatnonzero(wrong.ravel())[0])
            number_text = f"{scale.ravel()[at]:g} (number {at} of '{tensor.name}')"
            raise RewriteError(
                f"{node.op} '{node.name}' has the scale {number_text}, allowed are finite numbers above 0; "
                "calibrate the original again (--precision fp8 --calibrate)"
            )
