# SPDX-License-Identifier: Apache-2.0
"""Scores, and the standard error of the difference between two models' scores."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy.list_operations import Example
from benchmarks.accuracy.retrieval import Pair
from benchmarks.accuracy.scores import FoundScores, HeldOut, differences, score, standard_error

WORD = np.asarray([1], np.int32)


def found_of(answers: list[int], depths: list[int], nearest: list[int]) -> FoundScores:
    """A model's outputs with these choices."""
    return FoundScores(np.eye(10)[answers], np.eye(5)[depths], np.eye(2)[nearest], np.eye(2))


def test_scores_of_two_models() -> None:
    lists = [Example(np.zeros(size, np.int32), np.zeros(size, np.int32), 3) for size in (1, 3)]
    test = HeldOut(lists, [Pair(WORD, WORD)] * 2)
    reference = found_of([3, 3], [0, 0, 0, 1], [0, 1])
    other = found_of([3, 4], [0, 0, 0, 0], [1, 1])
    item, base = (score(test, each, reference) for each in (other, reference))
    assert item["percent"] == {"answers": 50.0, "tags": 100.0, "retrieval": 50.0}
    assert item["changed_percent"] == {"answers": 50.0, "tags": 25.0, "retrieval": 50.0}
    assert differences(item, base) == {"answers": -50.0, "tags": 25.0, "retrieval": -50.0}
    assert set(base["margin"].values()) == {0.0}
    assert base["largest_difference"] == 0.0


def test_the_standard_error_is_that_of_repeated_draws() -> None:
    rng = np.random.default_rng(0)
    means, errors = [], []
    for _ in range(300):
        counts = rng.integers(1, 20, 200)
        owners = np.repeat(np.arange(200), counts)
        values = rng.normal(0.0, 1.0, 200)[owners] + rng.normal(0.0, 1.0, len(owners))  # an owner's are alike
        means.append(values.mean())
        errors.append(standard_error(values, owners))
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.15)
