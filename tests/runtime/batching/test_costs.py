# SPDX-License-Identifier: Apache-2.0
"""Cost tables: interpolation, monotonicity, runs of unequal lengths, and the file."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from padfree.runtime import SessionError
from padfree.runtime.batching import CostTable, read_costs

LENGTHS, BATCHES = (16, 64, 256), (1, 4, 16)

Point = tuple[float, float]


def linear(length: float, batch: float) -> float:
    """The milliseconds of a model whose cost is linear in the tokens."""
    return 0.5 + length * batch / 1000


def table(interface: str = "packed", cost: Any = linear, **changes: Any) -> CostTable:
    cells = tuple(tuple(cost(length, batch) for batch in BATCHES) for length in LENGTHS)
    return CostTable(**{"interface": interface, "lengths": LENGTHS, "batches": BATCHES, "cost_ms": cells, **changes})


def test_measured_cells_come_back_and_between_them_cost_is_bilinear() -> None:
    costs = table()
    assert costs.seconds(64, 4) * 1e3 == pytest.approx(linear(64, 4))
    assert costs.seconds(40, 10) * 1e3 == pytest.approx(linear(40, 10))
    grid = costs.seconds(np.array([16, 100])[:, None], np.array([1, 2, 16]))
    assert grid * 1e3 == pytest.approx(np.array([[linear(row, at) for at in (1, 2, 16)] for row in (16, 100)]))


def test_beyond_the_table_cost_grows_in_proportion_and_short_sequences_cost_the_shortest() -> None:
    costs = table()
    assert costs.seconds(512, 16) == pytest.approx(2 * costs.seconds(256, 16))
    assert costs.seconds(256, 64) == pytest.approx(4 * costs.seconds(256, 16))
    assert costs.seconds(0, 4) == costs.seconds(16, 4)


def test_a_padded_run_costs_what_its_longest_sequence_says() -> None:
    costs = table("padded")
    assert costs.run_seconds([1, 200, 17]) == costs.seconds(200, 3)


def test_a_packed_run_costs_what_follows_from_its_tokens_and_squares() -> None:
    def encoder(length: float, batch: float) -> float:
        return 0.5 + length * batch / 1000 + length * length * batch / 1e6

    lengths = tuple(range(8, 257, 8))
    batches = tuple(range(1, 9))
    cells = tuple(tuple(encoder(length, batch) for batch in batches) for length in lengths)
    costs = CostTable("packed", lengths, batches, cells)
    run = [250, 30, 30, 90]
    expected = 0.5 + sum(run) / 1000 + sum(length**2 for length in run) / 1e6
    assert costs.run_seconds(run) * 1e3 == pytest.approx(expected, rel=1e-3)
    assert costs.run_seconds([64, 64, 64]) * 1e3 == pytest.approx(encoder(64, 3))
    assert costs.run_seconds([0, 0]) == costs.seconds(0, 2)


def test_noise_is_shared_between_cells_that_contradict_each_other(caplog: pytest.LogCaptureFixture) -> None:
    cells = ((1.0, 2.0, 4.0), (1.2, 1.9, 4.0), (1.5, 3.0, 4.0))
    costs = table(cost_ms=cells)
    assert costs.seconds(16, 4) * 1e3 == pytest.approx(1.95)
    assert costs.seconds(64, 4) * 1e3 == pytest.approx(1.95)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        table(cost_ms=((1.0, 2.0, 4.0), (3.0, 1.9, 4.0), (1.5, 3.0, 4.0))).seconds(16, 1)
    assert "larger runs measured faster" in caplog.text


cells = st.lists(st.lists(st.floats(0.01, 100), min_size=3, max_size=3), min_size=3, max_size=3)
points = st.tuples(st.floats(0, 600), st.floats(1, 40))


@given(cells, points, points)
def test_larger_runs_never_cost_less(
    rows: list[list[float]], one: tuple[float, float], two: tuple[float, float]
) -> None:
    costs = table(cost_ms=tuple(tuple(row) for row in rows))
    small = np.minimum(one, two)
    large = np.maximum(one, two)
    assert costs.seconds(*small) <= costs.seconds(*large) * (1 + 1e-9)


def test_runs_beyond_the_model_s_limits_may_be_missing() -> None:
    costs = table(cost_ms=((1.0, 2.0, 3.0), (2.0, 4.0, None), (3.0, None, None)))
    assert costs.seconds(64, 16) == pytest.approx(4 * costs.seconds(64, 4))
    assert costs.seconds(256, 16) >= costs.seconds(64, 16)


def test_the_file_holds_the_table_as_measured(tmp_path: Path) -> None:
    costs = table(cost_ms=((1.0, 2.0, 3.0), (2.0, 1.5, None), (3.0, None, None)), environment={"gpu": "a GPU"})
    path = tmp_path / "costs.json"
    path.write_text(costs.to_json(), "utf-8")
    assert read_costs(path) == costs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "something else"}, "not a 'padfree cost table' of format 1"),
        ({"format": 2}, "not a 'padfree cost table' of format 1"),
        ({"interface": "flat"}, "interface is 'flat', allowed: packed, padded"),
        ({"lengths": [16, 16, 32]}, r"lengths are \[16, 16, 32\], allowed: two or more growing"),
        ({"lengths": [16.5, 32, 64]}, "two or more growing whole numbers"),
        ({"batches": [2, 4, 8]}, "batches begin with 2, allowed: 1"),
        ({"batches": [1]}, "two or more growing"),
        ({"cost_ms": [[1.0, 2.0, 3.0]]}, r"rows of \[3\] cells, allowed: 3 rows"),
        ({"cost_ms": [[1.0, 2.0, 3.0], [1, 2, 0], [1, 2, 3]]}, "cost_ms of length 64 has 0, allowed: numbers above 0"),
        ({"cost_ms": [[1.0, 2.0, 3.0], [1, 2, "3"], [1, 2, 3]]}, "has '3', allowed"),
        ({"cost_ms": [[1.0, 2.0, 3.0], [1, None, 3], [1, 2, 3]]}, "allowed: numbers, then null"),
        ({"cost_ms": [[None, None, None], [1, 2, 3], [1, 2, 3]]}, "allowed: numbers, then null"),
        ({"cost_ms": 3}, "damaged cost table"),
        ({"environment": None}, "damaged cost table"),
    ],
)
def test_a_damaged_file_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({**json.loads(table().to_json()), **changes}), "utf-8")
    with pytest.raises(SessionError, match=message) as failure:
        read_costs(path)
    assert str(path) in str(failure.value)


def test_a_missing_file_or_key_says_how_to_measure(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="measure a cost table: padfree costs"):
        read_costs(tmp_path / "none.json")
    raw = json.loads(table().to_json())
    del raw["batches"]
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(raw), "utf-8")
    with pytest.raises(SessionError, match="damaged cost table \\(no 'batches'\\)"):
        read_costs(path)
