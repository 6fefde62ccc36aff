# SPDX-License-Identifier: Apache-2.0
"""Makes files whose numbers QuantizeLinear and DequantizeLinear round into float files."""

from .removal import holds_quantization, without_quantization, without_rounding
from .rounding_nodes import standard_rounding

__all__ = [
    "holds_quantization",
    "standard_rounding",
    "without_quantization",
    "without_rounding",
]
