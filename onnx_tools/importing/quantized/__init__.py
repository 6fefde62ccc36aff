# SPDX-License-Identifier: Apache-2.0
"""Removes QuantizeLinear and DequantizeLinear from files, whose numbers become floats."""

from .removal import holds_quantization, without_quantization, without_rounding
from .rounding_nodes import standard_rounding

__all__ = [
    "holds_quantization",
    "standard_rounding",
    "without_quantization",
    "without_rounding",
]
