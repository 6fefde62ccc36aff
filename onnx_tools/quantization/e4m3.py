# SPDX-License-Identifier: Apache-2.0
"""e4m3 (ONNX's float8e4m3fn): 4 bits of exponent, 3 of mantissa, no infinities; scales, and rounding to it.

Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..files import Floats
from ..operators import MAX_SCALE
from ..precision import moved_to_keep_sums

Bytes = npt.NDArray[Any]

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
LARGEST = 448.0
LEAST_SCALE, MOST_SCALE = 1 / MAX_SCALE, MAX_SCALE
"""For activations: fp16 holds them exactly, which it must, as QuantizeLinear's scale has the type of its input."""
_LEAST_WEIGHT_SCALE = np.float32(2.0**-100)


def activation_scale(largest: float, margin: float) -> float:
    """The smallest power of two by which numbers up to margin * largest have to be divided to fit e4m3.

    Dividing by a power of two and multiplying by its reciprocal give the same bits, on every machine.
    """
    quotient = 2.0 ** math.ceil(math.log2(max(largest * margin, LEAST_SCALE) / LARGEST))
    return min(max(quotient, LEAST_SCALE), MOST_SCALE)


def round_values(values: Floats) -> Floats:
    """The nearest numbers of e4m3 as float32, ties to even; numbers beyond its largest are cut off."""
    return narrow(values).astype(np.float32)


def narrow(values: Floats) -> Bytes:
    """The values in e4m3, clipped to its range. NaN stays NaN."""
    return np.clip(values, np.float32(-LARGEST), np.float32(LARGEST)).astype(E4M3)


def row_scales(weight: Floats, largest: float) -> Floats:
    """Scales [N] of rows [N,K] with which a row's largest number becomes `largest`: finite and above 0, 1 for zeros."""
    largest_of_row = np.abs(weight).max(axis=1, initial=0.0)
    scale: Floats = np.maximum(largest_of_row / np.float32(largest), _LEAST_WEIGHT_SCALE).astype(np.float32)
    scale[largest_of_row == 0] = 1.0
    return scale


def quantized_rows(weight: Floats) -> tuple[Bytes, Floats]:
    """e4m3 [N,K] and scales [N] of rows [N,K], whose sums stay the same; a row's largest number becomes e4m3's."""
    scale = row_scales(weight, LARGEST)
    return narrow(moved_to_keep_sums(weight / scale[:, np.newaxis], round_values, axis=1)), scale
