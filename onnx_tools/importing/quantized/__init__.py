# SPDX-License-Identifier: Apache-2.0
"""Files whose numbers are rounded by QuantizeLinear and DequantizeLinear, made into float ones."""

from .removal import holds_quantization, without_quantization, without_rounding
from .rounding_nodes import standard_rounding

__all__ = [
    "holds_quantization",
    "standard_rounding",
    "without_quantization",
    "without_rounding",
]
