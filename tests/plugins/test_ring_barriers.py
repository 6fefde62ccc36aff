# SPDX-License-Identifier: Apache-2.0
"""The barriers of Hopper attention hold in all orders tried; their model finds those that would not."""

from __future__ import annotations

import pytest

from .ring_barriers import failure_of

ORDERS = 60


@pytest.mark.parametrize("query_slots", [1, 2])
def test_the_protocol_holds(query_slots: int) -> None:
    for seed in range(ORDERS):
        assert failure_of(seed, query_slots=query_slots) == ""


@pytest.mark.parametrize(("without", "words"), [("checked", "instead of"), ("first", "nothing moves any more")])
def test_what_is_left_out_is_missed(without: str, words: str) -> None:
    failures = [failure_of(seed, query_slots=2, without=without) for seed in range(3 * ORDERS)]
    assert any(words in failure for failure in failures)
