# SPDX-License-Identifier: Apache-2.0
"""Removes QuantizeLinear and DequantizeLinear from files, whose numbers become floats."""

from .gemms import StoredGemm, stored_gemms
from .removal import holds_quantization, without_quantization, without_rounding
from .rounding_nodes import standard_rounding

__all__ = [
    "StoredGemm",
    "holds_quantization",
    "standard_rounding",
    "stored_gemms",
    "without_quantization",
    "without_rounding",
]
