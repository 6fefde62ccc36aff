# SPDX-License-Identifier: Apache-2.0
"""The barriers of PadfreeLinear's clusters hold in all orders tried; their model finds those that would not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from . import head_barriers
from .barrier_plays import Barrier, WrongError
from .linear_barriers import Play, failure_of

CLUSTERS = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2)]
ORDERS = 20


def plays(features: int, tokens: int, *, residual: bool, everybody: bool = True) -> list[Play]:
    rng = random.Random(0)
    return [
        Play(
            features,
            tokens,
            ring=rng.choice((4, 5, 7, 10)),
            depth=rng.choice((1, 2, 5, 12)),
            tiles=rng.choice((1, 2, 3)),
            residual=residual,
            paced=rng.choice((False, True)),
            everybody=everybody,
            stages_late=rng.choice((0, 2)),
        )
        for _ in range(ORDERS)
    ]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("features", "tokens"), CLUSTERS)
def test_the_protocol_holds(features: int, tokens: int, residual: bool) -> None:
    for seed, play in enumerate(plays(features, tokens, residual=residual)):
        assert not failure_of(play, seed), play


def test_a_block_that_hears_too_little_is_found() -> None:
    """Only those that share x or W are told that a stage is free: an earlier kernel did this."""
    results = {failure_of(play, seed) for seed, play in enumerate(plays(2, 2, residual=True, everybody=False))}
    assert any("written while it was read" in failure for failure in results)
    assert not any(failure_of(play, 1) for play in plays(2, 2, residual=False, everybody=False))


def test_lanes_that_leave_a_stage_before_others_see_it_are_found() -> None:
    """An earlier kernel did this, and hung when its timing was disturbed."""
    play = Play(1, 1, ring=4, depth=5, tiles=3, residual=True, paced=False, lanes_agree=False)
    results = [failure_of(play, seed) for seed in range(2 * ORDERS)]
    assert results.count("nothing moves any more") > 1
    assert not any(failure_of(replace(play, lanes_agree=True), seed) for seed in range(2 * ORDERS))


def test_a_warpgroup_that_is_too_late_is_found() -> None:
    """The first one waits for a stage that the second has not left."""
    play = Play(1, 1, ring=2, depth=5, tiles=2, residual=False, paced=False, stages_late=2)
    assert failure_of(play, 0) == "nothing moves any more"
    assert not failure_of(replace(play, ring=3), 0)


@pytest.mark.parametrize("residual", [False, True])
def test_a_block_that_ends_too_early_is_found(residual: bool) -> None:
    """An earlier kernel did this: once in thousands of launches an arrival found its block gone, and it failed."""
    results = {failure_of(replace(play, stays=False), seed) for seed, play in enumerate(plays(2, 4, residual=residual))}
    assert any("which had ended" in failure for failure in results)


def test_a_barrier_that_counts_wrong_is_found() -> None:
    barrier = Barrier(2)
    barrier.arrive(1)
    barrier.arrive()
    assert not barrier.is_over(0)
    with pytest.raises(WrongError, match="more arrivals than it counts"):
        barrier.arrive()
    barrier = Barrier(1)
    barrier.complete(1)  # before the bytes were announced
    barrier.arrive(1)
    assert barrier.is_over(0)


def test_halves_of_heads_reach_the_other_block() -> None:
    """With one place instead of two that take turns, a sum is lost before it is read."""
    assert not any(head_barriers.failure_of(seed) for seed in range(10 * ORDERS))
    assert any(head_barriers.failure_of(seed, places=1) for seed in range(10 * ORDERS))
