# SPDX-License-Identifier: Apache-2.0
"""benchmarks.batching with a small model on the CPU, and benchmarks.batching.planning."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from padfree.runtime.batching import read_costs

from benchmarks.batching import __main__ as batching
from benchmarks.batching import measurement, planning, request_cost


def test_tables_and_live_runs_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "RATES", (100.0,))
    batching.main(["--results", str(tmp_path), "--repeats", "1", "--seconds", "0.1", "--cpu"])
    assert read_costs(tmp_path / "packed.json").interface == "packed"
    assert read_costs(tmp_path / "padded.json").lengths == (16, 64)
    records = [json.loads(line) for line in (tmp_path / "batching.jsonl").read_text("utf-8").splitlines()]
    assert [record["set"] for record in records] == (["mixed"] * 3 + ["live"] * 2) * 2
    lives = [record for record in records if record["set"] == "live"]
    assert all(record["live"]["refused"] == 0 and record["live"]["p99_ms"] > 0 for record in lives)
    assert {"packed, token budget", "padded, cheapest cut"} < {record["policy"] for record in lives}


def test_planning_times_every_policy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["planning.py", "--repeats", "1"])
    planning.main()
    lines = capsys.readouterr().out.splitlines()
    assert [len(line.split()) > 4 for line in lines] == [True] * 5


def test_every_policy_s_cost_for_a_request_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_cost, "QUEUES", (1, 40))
    monkeypatch.setattr(request_cost, "environment", dict)
    monkeypatch.setattr(sys, "argv", ["request_cost.py", "--requests", "200", "--json", str(tmp_path / "cost.jsonl")])
    request_cost.main()
    records = [json.loads(line) for line in (tmp_path / "cost.jsonl").read_text("utf-8").splitlines()]
    assert [record["case"] for record in records] == [
        f"{name}, {waiting} waiting" for name in request_cost.POLICIES for waiting in (1, 40)
    ]
    assert all(0 < record["cpu_us"] < 1e5 and record["wall_us"] > 0 for record in records)
