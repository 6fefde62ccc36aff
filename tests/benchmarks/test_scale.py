# SPDX-License-Identifier: Apache-2.0
"""Forecasts of large jobs: the bottleneck, what waits for it, and that rates and times agree; the commands run."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pages import scale_tables
from benchmarks.scale import __main__ as command
from benchmarks.scale.model import Job, Machines, forecast, last_end, shard_work, stages
from benchmarks.training import __main__ as training

LENGTHS = np.clip(np.random.default_rng(0).lognormal(5.1, 0.45, 2000), 20, 400).astype(np.int64)
JOB, MACHINES = Job(), Machines(gpu_tokens_per_s=2.5e6, core_tokens_per_s=8e5)


def test_a_job_on_one_gpu_takes_its_tokens_over_the_rate() -> None:
    actual = forecast(JOB, replace(MACHINES, spread=0.0), 1, LENGTHS)
    assert actual.binds == "GPU"
    assert actual.seconds == pytest.approx(30 + 1e9 * 200 / 2.5e6, rel=1e-3)
    assert actual.cost == pytest.approx(actual.gpu_hours * 3)
    assert actual.cores == pytest.approx(2.5e6 / 8e5)
    assert actual.read_gb_per_s == pytest.approx(2.5e6 * 4.5 / 1e9)
    assert actual.write_gb_per_s == pytest.approx(2.5e6 / 200 * 1536 / 1e9)


@pytest.mark.parametrize(
    ("changes", "binds"),
    [
        ({"cores_a_gpu": 2.0}, "tokenising"),
        ({"network_gb_per_s": 0.05}, "writing"),
        ({"store_gb_per_s": 0.1}, "the store's bytes"),
        ({"store_puts_per_s": 1e-4}, "the store's objects"),
        ({"gpu_tokens_per_s": 1e5}, "GPU"),
    ],
)
def test_the_scarcest_of_all_binds(changes: dict[str, float], binds: str) -> None:
    machines = replace(MACHINES, **changes)
    actual = forecast(JOB, machines, 8, LENGTHS)
    assert actual.binds == binds
    assert actual.rate == min(stages(JOB, machines, 8).values())
    more = replace(machines, **{name: 1.2 * value for name, value in changes.items()})
    assert forecast(JOB, more, 8, LENGTHS).seconds < 0.9 * actual.seconds


def test_long_texts_bind_what_reads_them() -> None:
    actual = forecast(replace(JOB, bytes_a_token=4000.0), MACHINES, 8, LENGTHS)
    assert actual.binds == "reading"


def test_the_start_and_few_shards_bind_on_many_gpus() -> None:
    actual = forecast(JOB, MACHINES, 1024, LENGTHS)
    assert actual.binds == "the start"
    assert actual.seconds > 30 + 1e9 * 200 / 2.5e6 / 1024
    few = forecast(replace(JOB, shard_texts=1_000_000), replace(MACHINES, start_s=1.0), 900, LENGTHS)
    assert few.binds == "the last shards", "1000 shards on 900 GPUs: 100 of them do two"
    assert few.tail_share == pytest.approx(1 - 1000 / 900 / 2, abs=0.03)


def test_shards_go_to_whoever_is_free() -> None:
    assert last_end(np.ones(10), np.ones(4)) == 3.0
    assert last_end(np.ones(9), np.array([1.0, 2.0])) == 3.0
    assert last_end(np.array([3.0, 1.0, 1.0, 1.0]), np.ones(2)) == 3.0
    work = shard_work(replace(JOB, shard_texts=100, texts=1e6), LENGTHS, np.random.default_rng(0))
    drawn = np.random.default_rng(1).choice(LENGTHS * 200 / LENGTHS.mean(), (10_000, 100))
    real = (drawn + drawn**2 / 2700).sum(axis=1)
    assert work.mean() == pytest.approx(1, abs=1e-3)
    assert work.std() == pytest.approx(real.std() / real.mean(), rel=0.05)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file, lengths = tmp_path / "scale.jsonl", tmp_path / "lengths.npy"
    np.save(lengths, LENGTHS)
    monkeypatch.setattr(sys, "argv", ["scale", "--gpus", "1", "64", "--lengths", str(lengths), "--json", str(file)])
    command.main()
    records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [record["case"] for record in records] == ["1 GPU", "64 GPUs"]
    head, rows = scale_tables.scale(records)
    shown = [list(row) for row in rows]
    lines = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()[2:]]
    assert lines == [list(head), *shown]
    monkeypatch.setattr(sys, "argv", ["scale", "--price", "0"])
    with pytest.raises(SystemExit, match=r"--price is 0\.0, allowed: above 0"):
        command.main()


def test_the_command_of_imbalance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "training.jsonl"
    monkeypatch.setattr(sys, "argv", ["training", "--epochs", "1", "--json", str(file)])
    training.main()
    records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert len(records) == len(training.RANKS) * len(training.BATCHES)
    assert all(record["balanced_mean"] < record["unbalanced_mean"] / 2 for record in records)
    _, rows = scale_tables.imbalance(records)
    assert [row[0] for row in rows] == [str(ranks) for ranks in training.RANKS]
