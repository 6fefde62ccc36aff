# SPDX-License-Identifier: Apache-2.0
"""The frequencies found for rotary embeddings: those that are closest over all positions."""

from __future__ import annotations

import numpy as np
import pytest
from padfree.onnx_tools.match.chains import rotary

LENGTH = 4096
FREQUENCIES = 10000.0 ** (-np.arange(0, 64, 4) / 64)


def worst(frequency: np.float32, cosine: np.ndarray, sine: np.ndarray) -> float:
    """The largest error of a frequency over all positions."""
    angle = (np.arange(LENGTH, dtype=np.float32) * frequency).astype(np.float64)
    return max(float(np.abs(np.cos(angle) - cosine).max()), float(np.abs(np.sin(angle) - sine).max()))


@pytest.mark.parametrize("stored", [np.float32, np.float16])
@pytest.mark.parametrize("frequency", FREQUENCIES.astype(np.float32), ids=lambda value: f"{value:.1e}")
def test_the_closest_is_found(frequency: np.float32, stored: type[np.floating]) -> None:
    """As found by trying each of them at every position; 16-bit values say little about where it is."""
    angle = np.arange(LENGTH, dtype=np.float32) * frequency
    cosine, sine = (function(angle).astype(stored).astype(np.float64) for function in (np.cos, np.sin))
    neighbours = [np.float32(frequency + steps * np.spacing(frequency)) for steps in (2, 1, -1, 0, -2, 3, -3)]
    errors = [worst(value, cosine, sine) for value in neighbours]
    assert rotary._closest(neighbours, cosine, sine) == neighbours[int(np.argmin(errors))]
    if stored is np.float32:
        assert rotary._frequency(cosine, sine) == frequency
