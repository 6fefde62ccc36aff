# SPDX-License-Identifier: Apache-2.0
"""GELU for results in e4m3 (plugins/linear/activation.cuh), step by step as kernels compute it, for all of fp16."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from padfree.onnx_tools.quantization.e4m3 import activation_scale, round_values

HEADER = Path(__file__).parents[2] / "plugins" / "linear" / "activation.cuh"
ERROR = 1e-3  # to be multiplied by 0.1 + |x|
ROUNDING_EXCESS = 1.001

Floats = npt.NDArray[np.float64]


def coefficients() -> list[float]:
    """The coefficients of x, x^3, ... in Phi(x) - 1/2."""
    return [float(value) for value in re.findall(r"kPhi\d = ([-+.e\d]+)f", HEADER.read_text())]


def half(value: Floats) -> Floats:
    """Values rounded to fp16, as an instruction rounds them."""
    with np.errstate(over="ignore"):
        return value.astype(np.float16).astype(np.float64)


def gelu_coarse(x: Floats) -> Floats:
    """GELU as the kernels compute it: each multiply-add in fp16 is rounded once."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = half(x * x)
        *lower, p = coefficients()
        result = np.full_like(x, p)
        for coefficient in reversed(lower):
            result = half(result * square + coefficient)
        return half(x * half(np.clip(result * x + 0.5, 0.0, 1.0)))


def gelu(x: Floats) -> Floats:
    """The exact GELU."""
    return x * np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2


@pytest.fixture(scope="module")
def every_half() -> Floats:
    """All finite fp16 numbers."""
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    return numbers[np.isfinite(numbers)]


def test_coefficients_are_numbers_of_fp16() -> None:
    """The header's constants are exactly the numbers that are computed with."""
    actual = np.array(coefficients())
    assert len(actual) == 5
    assert (half(actual) == actual).all()


def test_error(every_half: Floats) -> None:
    """The error in addition to that of rounding the result to fp16."""
    truth = gelu(every_half)
    error = np.abs(gelu_coarse(every_half) - truth) - np.abs(truth) * 2.0**-11
    assert (error <= ERROR * (0.1 + np.abs(every_half))).all()


@pytest.mark.parametrize("deviation", [0.3, 0.7, 1.0, 2.0, 4.0])
def test_rounding_to_e4m3_hides_it(deviation: float) -> None:
    """After rounding, errors are about as large as those of rounded exact results."""
    x = np.random.default_rng(0).normal(size=200_000) * deviation
    truth = gelu(x)
    scale = activation_scale(float(np.abs(truth).max()), margin=1.0)

    def error(result: Floats) -> float:
        return float(np.linalg.norm(round_values(result / scale) * scale - truth) / np.linalg.norm(truth))

    assert 0.02 < error(truth) < 0.03
    assert error(gelu_coarse(half(x))) <= ROUNDING_EXCESS * error(truth)
