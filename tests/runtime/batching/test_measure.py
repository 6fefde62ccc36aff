# SPDX-License-Identifier: Apache-2.0
"""Measuring a cost table from a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Budget
from padfree.runtime.batching.measure import CPU_WARM_UP, default_grid, measure_costs, tokens_of_runs

ModelWriter = Callable[..., Path]


def test_every_cell_is_run_with_its_length_and_batch(
    packed_model: ModelWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    with Session(packed_model()) as session:
        run = session.run

        def spy(request: Any) -> Any:
            assert set(request) == {"input_ids", "token_type_ids"}
            seen.append(tuple(len(row) for row in request["input_ids"]))
            return run(request)

        monkeypatch.setattr(session, "run", spy)
        heard: list[int] = []
        facts = {"driver": "1.2"}
        costs = measure_costs(
            session, lengths=[2, 16], batches=[1, 3], repeats=2, environment=facts, on_run=heard.append
        )
        assert sorted(heard) == sorted(tokens_of_runs(session, lengths=[2, 16], batches=[1, 3], repeats=2))
    assert sorted(set(seen)) == [(2,), (2, 2, 2), (16,), (16, 16, 16)]
    assert len(seen) == 4 * (CPU_WARM_UP + 2)
    assert (costs.interface, costs.lengths, costs.batches) == ("packed", (2, 16), (1, 3))
    assert all(cost is not None and cost > 0 for row in costs.cost_ms for cost in row)
    assert dict(costs.environment) == {"precision": "fp32", "padfree": "0.1.0", "repeats": 2, "driver": "1.2"}


def test_runs_beyond_the_budget_are_left_out(packed_model: ModelWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(packed_model()) as session:
        monkeypatch.setattr(session, "_budget", Budget(max_tokens=16))
        costs = measure_costs(session, lengths=[8, 16], batches=[1, 2], repeats=1)
    assert [[cost is None for cost in row] for row in costs.cost_ms] == [[False, False], [False, True]]


def test_the_grid_covers_what_the_session_takes(padded_model: ModelWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(padded_model()) as session:
        assert default_grid(session) == ((1, 16), (1, 4, 16, 32))
        monkeypatch.setattr(session, "_budget", Budget(max_sequences=12))
        assert default_grid(session)[1] == (1, 4, 12)
        assert measure_costs(session, repeats=1).interface == "padded"


@pytest.mark.parametrize(("engine", "cells", "runs"), [(None, 16, 96), (512, 54, 1242)])
def test_a_cpu_has_a_coarser_grid(engine: int | None, cells: int, runs: int) -> None:
    profile = None if engine is None else SimpleNamespace(profile=SimpleNamespace(max_seq_len=engine))
    metadata = SimpleNamespace(engine=profile, max_positions=512)
    session: Any = SimpleNamespace(metadata=metadata, budget=Budget())
    lengths, batches = default_grid(session)
    assert (lengths[0], lengths[-1], batches[0], batches[-1]) == (16, 512, 1, 32)
    assert len(lengths) * len(batches) == cells
    assert len(tokens_of_runs(session)) == runs


def test_what_the_session_does_not_take_is_refused(packed_model: ModelWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything runs: the longest sequences, which take longest, come last."""
    with Session(packed_model()) as session:
        monkeypatch.setattr(session, "run", lambda _: pytest.fail("a run was measured"))
        with pytest.raises(SessionError, match="lengths reach 17 tokens, allowed: at most 16, the longest"):
            measure_costs(session, lengths=[16, 17], batches=[1, 2], repeats=1)
        with pytest.raises(SessionError, match=r"lengths are \[16, 4\], allowed: two or more growing whole numbers"):
            measure_costs(session, lengths=[16, 4], repeats=1)
        with pytest.raises(SessionError, match=r"batches are \[1\], allowed: two or more growing whole numbers"):
            measure_costs(session, batches=[1], repeats=1)
        with pytest.raises(SessionError, match="batches begin with 2, allowed: 1"):
            measure_costs(session, batches=[2, 4], repeats=1)
        with pytest.raises(SessionError, match="repeats is 0, allowed: 1 or more"):
            measure_costs(session, repeats=0)
