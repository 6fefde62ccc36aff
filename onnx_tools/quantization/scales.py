# SPDX-License-Identifier: Apache-2.0
"""Checks the scales in a file, which anybody may have written."""

from __future__ import annotations

import numpy as np

from ..errors import RewriteError
from ..files.model import Model
from .layers import OPERATOR

_POSITIONS = {OPERATOR: 2, "QuantizeLinear": 1, "DequantizeLinear": 1}
"""The position of the scale among a node's inputs."""


def check_scales(model: Model) -> None:
    """Raises RewriteError for a GEMM in e4m3, or a Q/DQ node, whose scale is not finite and above 0."""
    constants = {tensor.name: tensor for tensor in model.proto.graph.initializer}
    for node in model.proto.graph.node:
        position = _POSITIONS.get(node.op_type)
        if position is None or len(node.input) <= position or node.input[position] not in constants:
            continue
        scale = np.asarray(model.array(constants[node.input[position]]), np.float64)
        wrong = ~(np.isfinite(scale) & (scale > 0))
        if wrong.any():
            at = int(np.flatnonzero(wrong.ravel())[0])
            number_text = f"{scale.ravel()[at]:g} (number {at} of '{node.input[position]}')"
            raise RewriteError(
                f"{node.op_type} '{node.name}' has the scale {number_text}, allowed are finite numbers above 0; "
                "calibrate the original again (--precision fp8 --calibrate)"
            )
