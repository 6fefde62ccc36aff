# SPDX-License-Identifier: Apache-2.0
"""The benchmark of bulk work: what its figures are computed from."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from padfree.bulk import Progress

from benchmarks.bulk.measurement import EDGE_S, GpuUse, Steady, cpu_seconds, gpu_use
from benchmarks.pages import scale_tables


def test_rates_are_those_while_every_worker_has_work(monkeypatch: pytest.MonkeyPatch) -> None:
    times, cores = iter([10.0, 11.0, 14.0, 30.0]), iter([5.0, 8.0, 17.0, 18.0])
    monkeypatch.setattr("benchmarks.bulk.measurement.time.perf_counter", lambda: next(times))
    monkeypatch.setattr("benchmarks.bulk.measurement.cpu_seconds", lambda _: next(cores))
    steady = Steady()
    looks = [(0, 0), (50, 0), (90, 10), (90, 10), (90, 210), (290, 610), (310, 610), (310, 610)]
    for tokens in looks:  # repeated counts are ignored, and the span begins once both workers have done something
        steady(Progress(1, 9, 1, sum(tokens), tokens, 1.0))
    assert steady.span == (10.0, 14.0)  # after that one worker has nothing left
    assert steady.tokens_a_second == 200
    assert steady.cores == 3


def test_seconds_of_cores_are_those_of_processes_below_too() -> None:
    before = cpu_seconds(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint('x', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        assert cpu_seconds(os.getpid()) - before > 0.4
        process.kill()


def test_the_idle_share_leaves_out_the_time_before_and_after() -> None:
    step = EDGE_S / 3
    samples = [(at * step, 0 if at < 10 or at > 40 else 50 if at % 2 else 100) for at in range(60)]
    assert GpuUse(samples).idle(7 * step, 40 * step) == pytest.approx(0.25, abs=0.02)
    assert GpuUse(samples).idle(7 * step, 13 * step) is None
    assert GpuUse([]).idle(0.0, 60.0) is None


def test_samples_come_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 7\necho '[N/A]'\necho 9\nsleep 60\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with gpu_use(0) as actual:
        until = time.monotonic() + 20
        while len(actual.samples) < 2 and time.monotonic() < until:
            time.sleep(0.02)
    assert [percent for _, percent in actual.samples] == [7, 9]


def test_the_table() -> None:
    records = [
        {"case": "minilm, Session with tokens", "tokens_a_second": 9e6},
        {
            "case": "minilm, 2 GPU",
            "tokens_a_second": 17.8e6,
            "of_one_gpu": 1.98,
            "of_session": 0.989,
            "cores": 6.5,
            "idle": [0.01, 0.032],
            "gpu_idle": None,
        },
    ]
    head, rows = scale_tables.bulk(records)
    assert [len(row) for row in rows] == [len(head)] * 2
    assert list(rows)[1] == ["minilm, 2 GPU", "17.80", "1.98 x", "98.9%", "6.5", "3.2%", "-"]
