# SPDX-License-Identifier: Apache-2.0
"""Rounding to e4m3, and its scales, compared with the format's definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from padfree.onnx_tools.operators import MAX_SCALE
from padfree.onnx_tools.quantization.e4m3 import LARGEST, activation_scale, narrow, quantized_rows, round_values


def all_values() -> np.ndarray:
    """Every finite number of the format, sorted: sign, 4 bits of exponent (bias 7), 3 of mantissa, no infinities."""
    results = []
    for bits in range(128):
        exponent, mantissa = bits >> 3, bits & 7
        if (exponent, mantissa) != (15, 7):  # NaN
            results.append(math.ldexp(mantissa / 8 + (exponent > 0), max(exponent, 1) - 7))
    return np.unique([*results, *(-value for value in results)])


def test_numbers_become_the_nearest_ones() -> None:
    """Ties go to the even mantissa; numbers beyond the largest one become the largest."""
    values = all_values()
    assert (values.max(), values[values > 0].min(), len(values)) == (LARGEST, 2.0**-9, 253)
    inputs = np.concatenate([np.random.default_rng(0).standard_normal(4000) * 30, values, [1e9, -1e9]]).astype(
        np.float32
    )
    distance = np.abs(inputs[:, None] - values)
    np.testing.assert_array_equal(np.abs(round_values(inputs) - inputs), distance.min(1).astype(np.float32))
    middles = (values[1:] + values[:-1]) / 2
    actual = narrow(middles.astype(np.float32)).view(np.uint8)
    assert (actual % 2 == 0).all()


@pytest.mark.parametrize("largest", [1e-3, 0.0137, 1.0, 3.7, 447.0, 448.0, 449.0, 65504.0])
@pytest.mark.parametrize("margin", [1.0, 2.0, 64.0])
def test_scales_are_powers_of_two_with_room(largest: float, margin: float) -> None:
    scale = activation_scale(largest, margin)
    assert math.frexp(scale)[0] == 0.5
    if 1 / MAX_SCALE < scale < MAX_SCALE:
        assert LARGEST / 2 < largest * margin / scale <= LARGEST
    assert activation_scale(0.0, margin) == 1 / MAX_SCALE


def test_rows_of_weights_have_scales_of_their_own() -> None:
    weight = np.random.default_rng(1).standard_normal((6, 400)).astype(np.float32)
    weight *= np.array([1e-6, 1.0, 300.0, 0.0, 1e-30, 5.0], np.float32)[:, None]
    rows, scale = quantized_rows(weight)
    assert scale.dtype == np.float32
    assert (np.isfinite(scale) & (scale > 0)).all()
    exact = rows.astype(np.float64) * scale[:, None]
    assert not rows[3].astype(np.float32).any()
    np.testing.assert_array_equal(np.abs(rows.astype(np.float32)).max(1)[[0, 1, 2, 5]], LARGEST)
    # Half of the last place: 2^-4 of a number, or half of the smallest one.
    off = np.abs(exact - weight)
    assert (off <= np.maximum(np.abs(weight) * 2.0**-4, scale[:, None] * 2.0**-10) * 1.1).all()  # 1.1 to keep sums


def test_rows_of_weights_keep_their_sums() -> None:
    """Products with rows whose mean is not 0 have smaller errors, others no larger ones. Zeros stay zeros."""
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((300, 1024)).astype(np.float32)
    weight[:, ::5] = 0.0
    rows, scale = quantized_rows(weight)
    nearest = round_values(weight / scale[:, None])
    off, of_nearest = (held.astype(np.float64) * scale[:, None] - weight for held in (rows.astype(np.float32), nearest))
    assert not rows[:, ::5].astype(np.float32).any()
    assert np.abs(off.sum(1)).mean() < 0.25 * np.abs(of_nearest.sum(1)).mean()
    assert np.linalg.norm(off) < 1.002 * np.linalg.norm(of_nearest)
    x = rng.standard_normal((64, 1024)) + 2.0
    assert np.linalg.norm(x @ off.T) < 0.6 * np.linalg.norm(x @ of_nearest.T)
