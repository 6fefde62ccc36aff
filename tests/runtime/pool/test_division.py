# SPDX-License-Identifier: Apache-2.0
"""Batches are divided by cost: every sequence once, within the budget, and as evenly as the lengths allow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from padfree.runtime import SessionError
from padfree.runtime.batching import Budget, CostTable
from padfree.runtime.batching.dealing import SQUARES_A_TOKEN, even_out, modelled_costs, snake
from padfree.runtime.pool.division import divide

PACKED, PADDED = modelled_costs("packed"), modelled_costs("padded")
LENGTHS = st.lists(st.integers(0, 60), max_size=80)


@given(LENGTHS, st.integers(1, 9))
def test_a_snake_deals_every_sequence_once_in_equal_counts(lengths: list[int], hands: int) -> None:
    dealt = snake(lengths, hands)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(lengths)))
    counts = [hand.size for hand in dealt]
    assert max(counts) - min(counts) <= 1
    # Each round adds at most the difference between its longest and its shortest, and the next round evens it out.
    tokens = [int(np.array(lengths, dtype=int)[hand].sum()) for hand in dealt]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)


def test_a_snake_goes_back_and_forth() -> None:
    assert [hand.tolist() for hand in snake([10, 60, 20, 50, 30, 40], 2)] == [[1, 4, 2], [3, 5, 0]]
    with pytest.raises(SessionError, match="workers is 0, allowed: 1 or more"):
        snake([1], 0)


@given(LENGTHS, st.integers(1, 9))
def test_swaps_keep_counts_and_bring_shares_closer(lengths: list[int], hands: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    before = snake(array, hands)
    after = even_out(before, array)
    assert sorted(np.concatenate(after).tolist()) == list(range(len(lengths)))
    assert [hand.size for hand in after] == [hand.size for hand in before]

    def most(shares: list[npt.NDArray[np.int64]]) -> int:
        return max(int((array[hand] * SQUARES_A_TOKEN + array[hand] ** 2).sum()) for hand in shares)

    assert most(after) <= most(before)


def test_a_swap_takes_away_what_a_snake_leaves() -> None:
    lengths = np.array([60, 50, 45, 44, 20, 10])
    dealt = snake(lengths, 2)
    assert [lengths[hand].tolist() for hand in dealt] == [[60, 44, 20], [50, 45, 10]]
    assert [lengths[hand].tolist() for hand in even_out(dealt, lengths)] == [[60, 44, 10], [50, 45, 20]]


@given(LENGTHS, st.integers(1, 4), st.integers(0, 4), st.booleans())
def test_every_sequence_runs_once_within_the_budget(lengths: list[int], devices: int, idle: int, padded: bool) -> None:
    budget = Budget(120, 7, counts_padding=padded)
    array = np.array(lengths, dtype=np.int64)
    parts = divide(array, PADDED if padded else PACKED, budget, devices=devices, idle=min(idle, devices))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    for part in parts:
        sizes = array[part]
        assert part.size < 2 or budget.takes(part.size, int(sizes.sum()), int(sizes.max()))


def test_a_large_batch_makes_as_many_runs_for_every_device_of_one_cost() -> None:
    lengths = np.random.default_rng(0).integers(1, 385, 4000)
    parts = divide(lengths, PACKED, Budget(16384, 256), devices=3, idle=3)
    assert len(parts) % 3 == 0
    costs = [PACKED.run_seconds(lengths[part]) for part in parts]
    assert costs == sorted(costs, reverse=True)
    assert max(costs) < 1.01 * min(costs)


def test_one_run_is_divided_among_the_idle_alone_and_only_where_that_is_faster() -> None:
    lengths = np.full(64, 200)
    budget = Budget(16384, 256)
    for idle, expected in ((0, 1), (1, 1), (2, 2), (4, 4)):
        assert len(divide(lengths, PACKED, budget, devices=4, idle=idle)) == expected
    short = np.full(4, 50)
    assert len(divide(short, PACKED, budget, devices=4, idle=4)) == 1, "dividing it costs more"
    assert len(divide(lengths, PADDED, Budget(None, 256, counts_padding=True), devices=4, idle=4)) == 1


def test_padded_models_get_runs_of_neighbours_in_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 385, 300)
    parts = divide(lengths, PADDED, Budget(4096, 64, counts_padding=True), devices=2, idle=2)
    ranges = sorted((int(lengths[part].min()), int(lengths[part].max())) for part in parts)
    assert all(high <= low for (_, high), (low, _) in pairwise(ranges))


@given(LENGTHS)
def test_the_cost_of_a_run_follows_from_its_lengths_however_they_are_given(lengths: list[int]) -> None:
    tokens, squares = sum(lengths), sum(length * length for length in lengths)
    packed_s = float(PACKED.mixed_seconds(len(lengths), tokens, squares)) if lengths else 0.0
    padded_s = float(PADDED.seconds(max(lengths), len(lengths))) if lengths else 0.0
    for given_lengths in (lengths, np.array(lengths, np.int32)):
        assert PACKED.run_seconds(given_lengths) == pytest.approx(packed_s)
        assert PADDED.run_seconds(given_lengths) == pytest.approx(padded_s)


def test_modelled_costs_are_those_of_the_record_they_are_taken_from() -> None:
    rng = np.random.default_rng(0)
    for batch, longest, measured_ms in ((1, 128, 0.283), (16, 128, 0.541), (16, 512, 1.6925)):
        lengths = [128] if batch == 1 else rng.integers(longest // 5, longest + 1, (500, batch)).tolist()
        runs = [lengths] if batch == 1 else lengths
        modelled_ms = 1e3 * float(np.mean([PACKED.run_seconds(run) for run in runs]))
        assert modelled_ms == pytest.approx(measured_ms, rel=0.2)


def test_longer_is_dearer_for_the_same_tokens() -> None:
    """Attention is quadratic in the length: few long sequences cost more than many short ones with as many tokens."""
    costs: CostTable = PACKED
    assert costs.run_seconds([512] * 8) > 1.1 * costs.run_seconds([32] * 128)
