# SPDX-License-Identifier: Apache-2.0
"""Parts of a quantisation to e4m3 or int8 (onnx_tools/eight_bits.py): calibration, what GEMMs lose, and the graph."""

from .calibration import BeginSteps, Feeds, Step, largest_numbers
from .e4m3 import LARGEST, activation_scale, narrow
from .effect import Effect, measure_effect, outputs_of
from .formats import FORMATS, Format
from .kept_scales import keep_scales
from .losses import measure_losses
from .narrowing import narrow_gemms
from .options import AS_MEASURED, LARGEST_LOSS, LARGEST_NORM_LOSS, LARGEST_STREAM_LOSS, MARGIN, QuantizationOptions
from .scales import TensorScale, check_scales
from .selection import Selection, check_effects, describe
from .smoothing import choose_scales
from .target import fewest_kept
from .weights import QuantizedWeights

__all__ = [
    "AS_MEASURED",
    "FORMATS",
    "LARGEST",
    "LARGEST_LOSS",
    "LARGEST_NORM_LOSS",
    "LARGEST_STREAM_LOSS",
    "MARGIN",
    "BeginSteps",
    "Effect",
    "Feeds",
    "Format",
    "QuantizationOptions",
    "QuantizedWeights",
    "Selection",
    "Step",
    "TensorScale",
    "activation_scale",
    "check_effects",
    "check_scales",
    "choose_scales",
    "describe",
    "fewest_kept",
    "keep_scales",
    "largest_numbers",
    "measure_effect",
    "measure_losses",
    "narrow",
    "narrow_gemms",
    "outputs_of",
]
