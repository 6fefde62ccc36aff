"""The Hopper attention kernel for wide heads, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import Positions

from .cases import LENGTHS
from .test_attention_positions_sm90 import TYPES, check

SIZES = [136, 160, 192, 200, 256]
HEADS = [(3, 1), (2, 2), (4, 1), (10, 2)]
"""Heads of Q, and of K and V."""
WINDOWS = [(-1, -1), (-1, 0), (0, 0), (256, 256), (63, 64), (5, 130), (100, 0), (-1, 70), (300, -1)]
LONG = [513, 64, 0, 2048, 1, 129, 63, 65, 128, 448]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_windows(window: tuple[int, int], heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    for lengths in (*LENGTHS.values(), LONG):
        check(lengths, Positions(window), heads=heads, kv_heads=kv_heads, head_size=256, dtype=dtype, kernel="wide")


@pytest.mark.parametrize("head_size", SIZES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sizes(head_size: int, dtype: torch.dtype) -> None:
    for lengths in (*LENGTHS.values(), LONG):
        for window in ((-1, -1), (-1, 0)):
            check(
                lengths, Positions(window), kv_heads=1, head_size=head_size, dtype=dtype, kernel="wide", with_bias=True
            )


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (90, 20)], ids=str)
def test_large_scores(window: tuple[int, int]) -> None:
    for lengths in ([700, 33, 64], [65] * 40):
        check(lengths, Positions(window), kv_heads=1, head_size=256, kernel="wide", spread=4.0)


def test_auto_gives_the_same_bits() -> None:
    for window in ((-1, -1), (256, 256), (-1, 0)):
        results = [
            check([200, 77, 512], Positions(window), kv_heads=1, head_size=256, kernel=kernel)
            for kernel in ("auto", "wide")
        ]
        assert torch.equal(*results)
