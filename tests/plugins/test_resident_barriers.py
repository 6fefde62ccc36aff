# SPDX-License-Identifier: Apache-2.0
"""The barriers of products with resident input hold in all orders tried; their model finds those that would not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from .resident_barriers import Play, failure_of

CLUSTERS = [(1, 1), (2, 1), (1, 2)]
ORDERS = 60


def plays(features: int, tokens: int) -> list[Play]:
    rng = random.Random(0)

    def ranges() -> tuple[tuple[int, ...], ...]:
        count = rng.choice((1, 2, 3))
        return tuple(tuple(rng.choice((1, 1, 2, 3, 4)) for _ in range(count)) for _ in range(features))

    return [
        Play(features, tokens, ring=rng.choice((3, 4, 7)), depth=rng.choice((1, 2, 3, 6)), ranges=ranges())
        for _ in range(ORDERS)
    ]


@pytest.mark.parametrize(("features", "tokens"), CLUSTERS)
def test_the_protocol_holds(features: int, tokens: int) -> None:
    for seed, play in enumerate(plays(features, tokens)):
        assert not failure_of(play, seed), play


def test_warpgroups_without_ping_pong_are_found() -> None:
    """One may be a whole round of the ring ahead of the other, and takes the old content for the new."""
    results = {failure_of(replace(play, in_ping_pong=False), seed) for seed, play in enumerate(plays(1, 1))}
    assert any("had not come" in failure or "nothing moves" in failure for failure in results)


def test_input_that_is_left_before_it_came_is_found() -> None:
    results = {failure_of(replace(play, waits_to_leave=False), seed) for seed, play in enumerate(plays(2, 1))}
    assert results != {""}


@pytest.mark.parametrize(("features", "tokens"), [(2, 1), (1, 2)])
def test_a_block_that_ends_too_early_is_found(features: int, tokens: int) -> None:
    results = {failure_of(replace(play, stays=False), seed) for seed, play in enumerate(plays(features, tokens))}
    assert any("which had ended" in failure for failure in results)
