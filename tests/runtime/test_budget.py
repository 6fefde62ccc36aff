# SPDX-License-Identifier: Apache-2.0
"""Cutting a queue into runs: in order, all of it, within the budget, and no earlier than needed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from padfree.runtime import SessionError
from padfree.runtime.batching import Budget, cut

limits = st.none() | st.integers(1, 40)


def pieces(lengths: list[int], budget: Budget) -> list[list[int]]:
    return [lengths[run] for run in cut(lengths, budget)]


def test_tokens_sequences_and_padding_bound_a_run() -> None:
    lengths = [4, 4, 4, 1, 1, 8]
    assert pieces(lengths, Budget()) == [lengths]
    assert pieces(lengths, Budget(max_tokens=8)) == [[4, 4], [4, 1, 1], [8]]
    assert pieces(lengths, Budget(max_sequences=4)) == [[4, 4, 4, 1], [1, 8]]
    assert pieces(lengths, Budget(max_tokens=16, counts_padding=True)) == [[4, 4, 4, 1], [1, 8]]


def test_a_sequence_beyond_the_budget_runs_alone() -> None:
    assert pieces([1, 9, 1, 1], Budget(max_tokens=4)) == [[1], [9], [1, 1]]


def test_empty_sequences_take_no_tokens_and_an_empty_queue_no_run() -> None:
    assert pieces([0, 4, 0, 0], Budget(max_tokens=4)) == [[0, 4, 0, 0]]
    assert pieces([], Budget(max_tokens=4)) == []


@given(st.lists(st.integers(0, 30), max_size=40), limits, limits, st.booleans())
def test_runs_cover_the_queue_and_are_as_large_as_they_may_be(
    lengths: list[int], max_tokens: int | None, max_sequences: int | None, counts_padding: bool
) -> None:
    budget = Budget(max_tokens, max_sequences, counts_padding)

    def fits(run: list[int]) -> bool:
        tokens = len(run) * max(run) if counts_padding else sum(run)
        return (max_tokens is None or tokens <= max_tokens) and (max_sequences is None or len(run) <= max_sequences)

    runs = pieces(lengths, budget)
    assert [length for run in runs for length in run] == lengths
    assert all(fits(run) or len(run) == 1 for run in runs)
    assert not any(fits([*run, following[0]]) for run, following in pairwise(runs))


@pytest.mark.parametrize("name", ["max_tokens", "max_sequences"])
def test_a_budget_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(SessionError, match=f"{name} is 0, allowed: 1 or more"):
        Budget(**{name: 0})
