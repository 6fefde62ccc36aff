# SPDX-License-Identifier: Apache-2.0
"""int8: scales, rounding to it, and factors of columns that move outliers of activations into weights.

Xiao et al., "SmoothQuant", arXiv:2211.10438.
"""

from __future__ import annotations

import numpy as np

from ..files import Floats
from .e4m3 import LEAST_SCALE, MOST_SCALE, Bytes, row_scales

LARGEST = 127.0
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
    scale = row_scales(weight, LARGEST)
    return narrow(weight / scale[:, np.newaxis]), scale


def equal_cost_factors(deviations: Floats, lengths: Floats) -> Floats:
    """The factors of columns of x with which errors of x and errors of weights cost equally much, float32 [K].

    A factor f makes the steps of a column of x as large as f, which costs f times the length of the weights that
    multiply it. It makes the steps of the weights 1/f as large, compared with them, which costs the column's deviation
    divided by f: the bias takes the mean's part away. The sum of both squares is least where they are equal.

    Args:
        deviations: the standard deviation of each column.
        lengths: of the weights that multiply it.
    """
    result: Floats = np.sqrt(_at_least_part(deviations) / _at_least_part(lengths))
    return result


def floored_factors(largest: Floats, floors: Floats) -> Floats:
    """What columns of x are divided by, and rows of the weight multiplied: float32 [K].

    Divided by its largest number, each column has all steps of int8; but factors below the floor cost the weights more
    than x gains.

    Args:
        largest: the largest number of each column of x.
        floors: the least factor of each.

    The largest number of all columns stays the same, so that nothing overflows. Reciprocals are numbers of bf16, which
    fp16 holds, too: a tensor of either type is multiplied by exactly them.
    """
    factors = np.maximum(_at_least_part(largest), floors).astype(np.float64)
    if largest.any():
        factors *= (largest / factors).max() / largest.max()
    result: Floats = (1.0 / _to_bf16((1.0 / factors).astype(np.float32))).astype(np.float32)
    return result


def _at_least_part(values: Floats) -> Floats:
    result: Floats = np.maximum(values, max(float(values.max(initial=0.0)) * _LEAST_PART, 1e-12)).astype(np.float32)
    return result


def _to_bf16(values: Floats) -> Floats:
    """Rounded to 8 bits, and into fp16's normal range."""
    bits = np.clip(values, 2.0**-14, 2.0**14).astype(np.float32).view(np.uint32)
    result: Floats = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
    return result
