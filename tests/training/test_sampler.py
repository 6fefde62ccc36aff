# SPDX-License-Identifier: Apache-2.0
"""Batches of all ranks: every row once, equal counts, nearly equal work, the same on every rank."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from padfree.training import BalancedBatchSampler, SamplerError, for_sentence_transformers, imbalances, world_size

LENGTHS = st.lists(st.integers(0, 500), min_size=1, max_size=120)
SQUAD_LIKE = np.clip(np.random.default_rng(3).lognormal(np.log(165), 0.45, 8192), 41, 384).astype(np.int64)


@given(LENGTHS, st.integers(1, 7), st.integers(1, 5), st.integers(0, 3), st.booleans())
def test_every_row_comes_once_in_equal_counts(
    lengths: list[int], batch: int, ranks: int, epoch: int, drop: bool
) -> None:
    step, rows = batch * ranks, len(lengths)
    if drop and rows < step:
        with pytest.raises(SamplerError, match=rf"{rows} rows make no step of {ranks} x {batch}"):
            BalancedBatchSampler(lengths, batch, replicas=ranks, drop_last=True)
        return
    sampler = BalancedBatchSampler(lengths, batch, replicas=ranks, drop_last=drop)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler) == ranks * sampler.steps
    counts = Counter(chain.from_iterable(batches))
    if drop:
        assert set(counts.values()) == {1}
        assert sum(counts.values()) == rows // step * step
    elif ranks == 1:
        assert counts == Counter(range(rows))
        assert [len(rows) for rows in batches[:-1]] == [batch] * (len(batches) - 1)
        return
    else:
        assert set(counts) == set(range(rows))
        assert sum(counts.values()) == -(-rows // step) * step, "the last step is filled, and no more than that"
    assert {len(rows) for rows in batches} == {batch}


@given(LENGTHS, st.integers(1, 5), st.integers(1, 4))
def test_views_are_parts_of_the_same_steps(lengths: list[int], batch: int, ranks: int) -> None:
    sampler = BalancedBatchSampler(lengths, batch, replicas=ranks, seed=5)
    batches = list(sampler)
    for rank in range(ranks):
        view = sampler.for_rank(rank)
        assert list(view) == batches[rank::ranks]
        assert len(view) == sampler.steps
    joined = sampler.joined()
    assert list(joined) == [list(chain(*batches[at : at + ranks])) for at in range(0, len(batches), ranks)]
    assert (len(joined), joined.batch_size) == (sampler.steps, batch * ranks)


def test_the_work_of_ranks_is_nearly_equal_and_far_more_so_than_by_chance() -> None:
    for ranks, batch, most in ((2, 8, 0.005), (4, 8, 0.005), (8, 8, 0.005), (8, 32, 0.001)):
        sampler = BalancedBatchSampler(SQUAD_LIKE, batch, replicas=ranks)
        balanced = imbalances(sampler.shares(), SQUAD_LIKE)
        order = np.random.default_rng(0).permutation(SQUAD_LIKE.size).reshape(-1, ranks, batch)
        by_chance = imbalances(order.tolist(), SQUAD_LIKE)
        assert balanced.size == by_chance.size == sampler.steps
        assert balanced.mean() < most
        assert by_chance.mean() > 20 * balanced.mean()


def test_imbalance_is_the_longest_over_the_mean() -> None:
    lengths = [10, 20, 30, 0]
    actual = imbalances([[[0, 1], [2]], [[0], [2]], [[3], [3]]], lengths, squares_a_token=float("inf"))
    assert actual.tolist() == pytest.approx([0.0, 0.5, 0.0])
    (squared,) = imbalances([[[0], [1]]], lengths, squares_a_token=10.0)
    assert squared == pytest.approx(60 / 40 - 1)  # 10 + 10 and 20 + 40
    with pytest.raises(SamplerError, match="squares_a_token is 0, allowed: above 0"):
        imbalances([], lengths, squares_a_token=0)


def test_order_follows_from_seed_and_epoch_alone() -> None:
    def epochs(seed: int, *numbers: int) -> list[list[list[int]]]:
        sampler = BalancedBatchSampler(SQUAD_LIKE[:100], 5, replicas=2, seed=seed)
        results = []
        for number in numbers:
            sampler.set_epoch(number)
            results.append(list(sampler))
        return results

    first, second, again = epochs(7, 0, 1, 0)
    assert first == again == epochs(7, 0)[0]
    assert first not in (second, epochs(8, 0)[0])
    plain = BalancedBatchSampler([3, 1, 2, 4, 9, 8], 2, shuffle=False)
    assert list(plain) == [[0, 1], [2, 3], [4, 5]]
    # From the raw output of PCG64: other machines and other versions of NumPy must get exactly this order.
    assert list(BalancedBatchSampler([1] * 10, 10, seed=1)) == [[9, 2, 4, 7, 5, 0, 8, 6, 3, 1]]


def test_digests_tell_ranks_apart_that_would_not_fit_together() -> None:
    def digest(lengths: list[int], **changes: Any) -> str:
        return BalancedBatchSampler(lengths, 2, **{"replicas": 2, **changes}).digest

    same = digest([1, 2, 3, 4])
    assert digest([1, 2, 3, 4]) == same
    assert same not in (digest([1, 2, 4, 3]), digest([1, 2, 3, 4], seed=1), digest([1, 2, 3, 4], replicas=1))


def test_batches_of_a_rank_cannot_be_divided_again() -> None:
    view = BalancedBatchSampler([1] * 8, 2, replicas=2).for_rank(1)
    with pytest.raises(SamplerError, match="these are the batches of rank 1 of 2 alone, and dividing them among proce"):
        getattr(view, "batch_size", None)  # accelerate's BatchSamplerShard reads it
    assert BalancedBatchSampler([1] * 8, 2).for_rank(0).batch_size == 2


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([], {}, r"lengths are an array \[0\] of float64, allowed: whole numbers \[N\]"),
        ([[1, 2]], {}, r"lengths are an array \[1, 2\] of int64"),
        ([1.5], {}, r"lengths are an array \[1\] of float64"),
        ([3, -1], {}, "the length of row 1 is -1, allowed: 0 or more"),
        ([3], {"batch_size": 0}, "batch_size is 0, allowed: 1 or more"),
        ([3], {"replicas": 0}, "replicas is 0, allowed: 1 or more"),
        ([3], {"seed": -1}, "seed is -1, allowed: 0 or more"),
    ],
)
def test_what_makes_no_batches_is_refused(lengths: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplerError, match=message):
        BalancedBatchSampler(lengths, **{"batch_size": 1, **options})
    with pytest.raises(SamplerError, match=r"rank is 2, allowed: 0\.\.1; pass this process's rank"):
        BalancedBatchSampler([1, 2], 1, replicas=2).for_rank(2)


def test_the_hook_of_sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["a", "bb", "ccc", "dddd"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = for_sentence_transformers(lambda dataset: [len(row) for row in dataset])(
        rows, batch_size=2, drop_last=True, valid_label_columns=["label"], generator=None, seed=3
    )
    assert (result.replicas, result.batch_size, result.drop_last, result.seed) == (2, 2, True, 3)
    assert for_sentence_transformers([1, 2, 3, 4], replicas=1)(rows, 4, False).replicas == 1
    with pytest.raises(SamplerError, match="there are 3 lengths for a dataset of 4 rows"):
        for_sentence_transformers([1, 2, 3])(rows, 2, False)
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(SamplerError, match="WORLD_SIZE is 'many', allowed: 1 or more"):
        world_size()
    monkeypatch.delenv("WORLD_SIZE")
    assert world_size() == 1


def test_nothing_of_it_needs_torch() -> None:
    code = (
        "import sys, padfree.training; sys.exit(bool({'torch', 'tensorrt', 'onnxruntime', 'cuda'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
