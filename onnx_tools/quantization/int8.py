# SPDX-License-Identifier: Apache-2.0
"""int8: scales, rounding to it, and factors of columns that move outliers of activations into weights.

Xiao et al., "SmoothQuant", arXiv:2211.10438.
"""

from __future__ import annotations

import numpy as np

from ..files import Floats
from .e4m3 import LEAST_SCALE, MOST_SCALE, Bytes

LARGEST = 127.0
_LEAST_WEIGHT_SCALE = np.float32(2.0**-100)
_LEAST_PART = 2.0**-10
"""Columns with numbers below this fraction of the largest column's get the factor of a column at that fraction."""


def activation_scale(largest: float, margin: float) -> float:
    """What numbers up to margin * largest are divided by to fit int8: a number of fp16.

    QuantizeLinear's scale has the type of its input.
    """
    quotient = min(max(largest * margin / LARGEST, LEAST_SCALE), MOST_SCALE)
    return float(np.float16(quotient))


def narrow(values: Floats) -> Bytes:
    """The nearest whole numbers, ties to even, cut off at -128 and 127; NaN becomes 0."""
    result: Bytes = np.nan_to_num(np.clip(np.rint(values), -128, 127), nan=0.0).astype(np.int8)
    return result


def quantized_rows(weight: Floats) -> tuple[Bytes, Floats]:
    """int8 [N,K] and scales [N] of rows [N,K]; a row's largest number becomes 127."""
    largest = np.abs(weight).max(axis=1, initial=0.0)
    scale = np.maximum(largest / np.float32(LARGEST), _LEAST_WEIGHT_SCALE).astype(np.float32)
    scale[largest == 0] = 1.0
    return narrow(weight / scale[:, np.newaxis]), scale


def smoothing_factors(activations: Floats, weights: Floats, strength: float) -> Floats:
    """What columns of x are divided by, and rows of the weight multiplied: float32 [K].

    Args:
        activations: the largest number of each column of x.
        weights: that of the weights that multiply it.
        strength: 0 leaves the weights as even as can be, 1 the columns of x.

    The largest number of all columns stays the same, so that nothing overflows. Reciprocals are numbers of bf16, which
    fp16 holds, too: a tensor of either type is multiplied by exactly them.
    """
    x = np.maximum(activations, max(float(activations.max(initial=0.0)) * _LEAST_PART, 1e-12)).astype(np.float64)
    w = np.maximum(weights, max(float(weights.max(initial=0.0)) * _LEAST_PART, 1e-12)).astype(np.float64)
    factors = x**strength / w ** (1 - strength)
    factors *= (activations / factors).max() / max(float(activations.max()), 1e-12)
    result: Floats = (1.0 / _to_bf16((1.0 / factors).astype(np.float32))).astype(np.float32)
    return result


def _to_bf16(values: Floats) -> Floats:
    """Rounded to 8 bits, and into fp16's normal range."""
    bits = np.clip(values, 2.0**-14, 2.0**14).astype(np.float32).view(np.uint32)
    result: Floats = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
    return result
