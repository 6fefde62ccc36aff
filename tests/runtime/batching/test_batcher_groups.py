# SPDX-License-Identifier: Apache-2.0
"""Groups of sequences in a Batcher: they share an entry of the queue, a run and an outcome."""

from __future__ import annotations

import pytest
from padfree.runtime import SessionError
from padfree.runtime.batching import Batcher, Budget, CheapestCut, CostTable, DeadlineError, FirstCome, Waiting

from .batcher_model import BREAKS, PATIENCE_S, Model, answer, first_come, held_up


def test_groups_and_single_sequences_share_runs(model: Model) -> None:
    with Batcher(model, first_come(max_tokens=6, max_sequences=4), runs=1) as batcher:
        held_up(model, batcher)
        group = batcher.submit_group([[2, 3], [], [4]])
        single, other = batcher.submit([5]), batcher.submit_group({"input_ids": [6, 7]}, seq_lens=[1, 1])
        model.gate.set()
        assert [row.tolist() for row in group.result(PATIENCE_S)["tens"]] == [[20, 30], [], [40]]
        assert answer(single) == [50]
        assert [row.tolist() for row in other.result(PATIENCE_S)["tens"]] == [[60], [70]]
    assert model.runs == [[[1]], [[2, 3], [], [4], [5]], [[6], [7]]]
    assert batcher.stats.answered == 4


def test_a_group_fails_as_a_whole_and_alone(model: Model) -> None:
    with Batcher(model, first_come(), runs=1) as batcher:
        held_up(model, batcher)
        good, bad = batcher.submit_group([[2], [3]]), batcher.submit_group([[4], [BREAKS]])
        model.gate.set()
        assert [row.tolist() for row in good.result(PATIENCE_S)["tens"]] == [[20], [30]]
        with pytest.raises(RuntimeError):
            bad.result(PATIENCE_S)


def test_a_group_that_does_not_fit_is_refused_at_once(model: Model) -> None:
    with Batcher(model, first_come()) as batcher:
        for sequences in ([[2], [1, 100]], [], [[2], list(range(17))]):
            with pytest.raises(SessionError, match=r"allowed|positions"):
                batcher.submit_group(sequences)
        for ids, seq_lens in (([2, 3], [1]), ([2, 100], [1, 1]), ([], []), ([2], [[1]])):
            with pytest.raises(SessionError, match=r"allowed|add up"):
                batcher.submit_group(ids, seq_lens=seq_lens)


def test_a_group_that_waits_too_long_is_dropped(model: Model) -> None:
    with Batcher(model, first_come(), runs=1) as batcher:
        held_up(model, batcher)
        late = batcher.submit_group([[2], [3]], deadline_s=0.02)
        with pytest.raises(DeadlineError):
            late.result(PATIENCE_S)
        model.gate.set()


def test_answers_of_groups_are_not_cached(model: Model) -> None:
    with Batcher(model, first_come(), cache_bytes=1 << 20) as batcher:
        for _ in range(2):
            assert [row.tolist() for row in batcher.submit_group([[2]]).result(PATIENCE_S)["tens"]] == [[20]]
        assert batcher.stats.cache_hits == 0


def test_policies_that_choose_single_sequences_take_no_groups(model: Model) -> None:
    table = CostTable("packed", (1, 512), (1, 8), ((1.0, 2.0), (2.0, 4.0)))
    with Batcher(model, CheapestCut(table, Budget())) as batcher, pytest.raises(SessionError, match="CheapestCut"):
        batcher.submit_group([[2], [3]])


def test_padding_counts_with_the_longest_sequence_of_a_group() -> None:
    waiting = [Waiting(9, 0.0, sequences=3, longest=4), Waiting(4, 0.0)]
    assert FirstCome(Budget(16, counts_padding=True)).decide(waiting, 1.0).run == [0, 1]
    assert FirstCome(Budget(15, counts_padding=True)).decide(waiting, 1.0).run == [0]
    assert FirstCome(Budget(16, 3), max_delay_s=9.0).decide(waiting[:1], 1.0).run == [
        0
    ]  # full: it does not wait for others
