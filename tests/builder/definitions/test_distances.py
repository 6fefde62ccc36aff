# SPDX-License-Identifier: Apache-2.0
"""Buckets of distances and slopes are those of transformers' own functions, at every distance."""

from __future__ import annotations

import numpy as np
import pytest
from padfree.builder.definitions.distances import alibi_slopes, log_buckets, two_sided_buckets

FURTHEST = 1200
DISTANCES = np.arange(-FURTHEST, FURTHEST + 1)
MPNET = (32, 128)


@pytest.mark.needs_torch
@pytest.mark.parametrize(("count", "furthest"), [(32, 128), (8, 16), (12, 16), (8, 7), (32, 1000), (64, 256)])
def test_buckets_of_t5(count: int, furthest: int) -> None:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    inputs = torch.from_numpy(DISTANCES)
    wanted = T5Attention._relative_position_bucket(inputs, num_buckets=count, max_distance=furthest)
    np.testing.assert_array_equal(two_sided_buckets(DISTANCES, count, furthest), wanted.numpy())


@pytest.mark.needs_torch
def test_buckets_of_mpnet() -> None:
    import torch
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    wanted = MPNetEncoder.relative_position_bucket(torch.from_numpy(DISTANCES))
    np.testing.assert_array_equal(two_sided_buckets(DISTANCES, *MPNET), wanted.numpy())


@pytest.mark.needs_torch
@pytest.mark.parametrize(("count", "furthest"), [(256, 512), (4, 12), (8, 40), (32, 100), (64, 512)])
def test_buckets_of_deberta(count: int, furthest: int) -> None:
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    wanted = make_log_bucket_position(torch.from_numpy(DISTANCES), count, furthest).numpy().astype(np.int64)
    actual = log_buckets(DISTANCES, count, furthest)
    np.testing.assert_array_equal(np.clip(actual, -count, count - 1), np.clip(wanted, -count, count - 1))


def test_buckets_end_where_they_say() -> None:
    """From some distance on, every bucket is the last one: tables need no entries beyond it."""
    far = two_sided_buckets(DISTANCES, *MPNET)
    assert set(far[DISTANCES <= -128]) == {15}
    assert set(far[DISTANCES >= 128]) == {31}
    clipped = np.clip(log_buckets(DISTANCES, 256, 512) + 256, 0, 511)
    assert set(clipped[DISTANCES >= 1024]) == {511}
    assert set(clipped[DISTANCES <= -1024]) == {0}


def test_small_distances_have_buckets_of_their_own() -> None:
    near = np.arange(-7, 8)
    assert list(two_sided_buckets(near, *MPNET)) == [7, 6, 5, 4, 3, 2, 1, 0, 17, 18, 19, 20, 21, 22, 23]
    assert list(log_buckets(near, 256, 512)) == list(near)


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        (8, [2.0**-power for power in range(1, 9)]),
        (12, [*(2.0**-power for power in range(1, 9)), 2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]),
        (3, [2.0**-4, 2.0**-8, 2.0**-2]),
    ],
)
def test_slopes(heads: int, wanted: list[float]) -> None:
    np.testing.assert_allclose(alibi_slopes(heads), wanted, rtol=1e-6)
