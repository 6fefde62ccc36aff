# SPDX-License-Identifier: Apache-2.0
"""Injected outliers: large numbers inside the model, and nearly the same outputs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
trained_outliers = pytest.importorskip("benchmarks.accuracy.outliers")

LENGTH = 24


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return trained_outliers.Model(layers=2, hidden=64).eval()


@pytest.fixture(scope="module")
def batch() -> tuple[Any, Any]:
    lengths = torch.arange(4, LENGTH + 1)
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    return torch.randint(1, 2000, mask.shape, generator=torch.Generator().manual_seed(0)) * mask, mask


def test_the_function_stays_nearly_as_it_is(model: Any, batch: tuple[Any, Any]) -> None:
    changed = trained_outliers.with_outliers(model, *batch)
    with torch.inference_mode():
        for wanted, actual in zip(model(*batch), changed(*batch), strict=True):
            assert (actual - wanted).norm() < 0.1 * wanted.norm()


def test_channels_of_every_norm_and_inner_activations_are_large(model: Any, batch: tuple[Any, Any]) -> None:
    changed = trained_outliers.with_outliers(model, *batch)
    assert changed.largest_norm_parameter() > 10 * model.largest_norm_parameter()
    inputs = trained_outliers.norm_inputs(changed, *batch)
    assert len(inputs) == 5
    for rows in inputs[1:]:
        others = rows.abs().median()
        for channel in trained_outliers.CHANNELS:
            assert rows[:, channel].abs().min() > 10 * others
