# SPDX-License-Identifier: Apache-2.0
"""Parts of a quantisation to e4m3 or int8 (onnx_tools/eight_bits.py): calibration, what GEMMs lose, and the graph."""

from .calibration import BeginSteps, Feeds, Step, largest_numbers
from .e4m3 import LARGEST, activation_scale, narrow
from .formats import FORMATS, Format
from .options import LARGEST_LOSS, MARGIN, QuantizationOptions
from .scales import check_scales

__all__ = [
    "FORMATS",
    "LARGEST",
    "LARGEST_LOSS",
    "MARGIN",
    "BeginSteps",
    "Feeds",
    "Format",
    "QuantizationOptions",
    "Step",
    "activation_scale",
    "check_scales",
    "largest_numbers",
    "narrow",
]
