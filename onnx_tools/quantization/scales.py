# SPDX-License-Identifier: Apache-2.0
"""Scales of activations, and the check of those in a file, which anybody may have written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..errors import RewriteError
from ..files import Floats

_POSITIONS = {"PadfreeLinearFp8": 2, "PadfreeLinearInt8": 2, "QuantizeLinear": 1, "DequantizeLinear": 1}
"""The position of the scale among a node's inputs."""


@dataclass(frozen=True, eq=False)
class TensorScale:
    """What the numbers of a tensor [T,K] are divided by before they are rounded.

    Attributes:
        value: the scale of all.
        factors: before it, a divisor of each column, float32 [K], by which rows of weights are multiplied; or None.
        key: names the factors, empty without.
        strength: the share of columns whose factor follows from their largest number, 0 to 1; None without factors.
    """

    value: float
    factors: Floats | None = None
    key: str = ""
    strength: float | None = None

    def smooth(self, values: Floats) -> Floats:
        """Numbers [T,K] divided by the factors of their columns."""
        return values if self.factors is None else values / self.factors


def check_scales(graph: gs.Graph) -> None:
    """Raises RewriteError for a GEMM of 8 bits, or a Q/DQ node, whose scale is not finite and above 0."""
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
                "calibrate the original again (--calibrate)"
            )
