# SPDX-License-Identifier: Apache-2.0
"""Weights that are rounded in such a way that their sums stay."""

from __future__ import annotations

import numpy as np
import pytest
from padfree.onnx_tools.precision.rounded_weights import Floats, moved_to_keep_sums, round_to, to_float32


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_stay_and_errors_do_not_grow(precision: str, axis: int) -> None:
    rng = np.random.default_rng(3)
    exact = (rng.standard_normal((1024, 1024)) * rng.uniform(0.1, 3, (1024, 1))).astype(np.float32)
    exact[::7] = 0.0

    def error_of(values: Floats) -> Floats:
        return to_float32(round_to(values, precision))

    kept, nearest = error_of(moved_to_keep_sums(exact, error_of, axis)), error_of(exact)
    off, of_nearest = kept.astype(np.float64) - exact, nearest.astype(np.float64) - exact
    assert np.abs(off.sum(axis)).mean() < 0.3 * np.abs(of_nearest.sum(axis)).mean()
    assert np.linalg.norm(off) < 1.002 * np.linalg.norm(of_nearest)
    assert not kept[::7].any()


def test_numbers_that_the_type_holds_stay() -> None:
    exact = np.arange(-500, 500, dtype=np.float32).reshape(10, 100)
    exact[3] = 0.0
    assert np.array_equal(moved_to_keep_sums(exact, lambda values: to_float32(round_to(values, "fp16")), 1), exact)
