# SPDX-License-Identifier: Apache-2.0
"""The engines with general kernels that are built and compared: each has a file of its own."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.engine import general
from benchmarks.kernels import linear_mma_bytes


def test_every_engine_has_a_plan_of_its_own(tmp_path: Path) -> None:
    arguments = argparse.Namespace(engines=tmp_path)
    plans = [general.plan_of(case, variant, arguments) for case in general.CASES for variant in case.variants]
    assert len(set(plans)) == len(plans)
    assert all(plan.parent == tmp_path and plan.suffix == ".plan" for plan in plans)


def test_every_case_has_own_gemms_and_a_batch_of_one_has_no_padding() -> None:
    assert all(case.variants[0] == general.OWN for case in general.CASES)
    assert {case.mean == case.seq_len for case in general.CASES if case.batch == 1} == {True}
    assert {case.mean < case.seq_len for case in general.CASES if case.batch > 1} == {True}


def test_only_the_wanted_variants_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        at = command.index("--build")
        built.append(tuple(command[at + 1 : at + 3]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    wanted = [general.PADDED, general.OWN]
    arguments = argparse.Namespace(engines=tmp_path, models=tmp_path, workers=1, seconds=None, variants=wanted)
    cases = {case.name: case for case in general.CASES if case.model == "bert-base"}
    with ThreadPoolExecutor(1) as pool:
        general.build_all(cases, arguments, pool)
    assert built == [(name, general.OWN) for name in cases] + [
        (name, general.PADDED) for name, case in cases.items() if general.PADDED in case.variants
    ]


def test_builds_end_when_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    arguments = argparse.Namespace(engines=tmp_path, models=tmp_path, workers=1, seconds=0.5, variants=[general.OWN])
    cases = {case.name: case for case in general.CASES[:2]}
    start = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        general.build_all(cases, arguments, pool)
    assert time.monotonic() - start < 50  # each of them would take 60 s
    first, second = capfd.readouterr().out.splitlines()
    assert "padfree: ended before it was built" in first
    assert "left, 0 s are over" in second


def test_a_case_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(case: general.Case, _: argparse.Namespace) -> str:
        if case.precision == "int8":
            raise ValueError("no answers")
        return case.name

    records = list[object]()
    monkeypatch.setattr(general, "build_all", lambda *_: None)
    monkeypatch.setattr(general, "prepare", prepare)
    monkeypatch.setattr(
        general, "measure", lambda case, reference, _: {"case": reference, "same": reference == case.name}
    )
    monkeypatch.setattr(general, "keep", lambda _, record: records.append(record))
    monkeypatch.setattr(sys, "argv", ["general", "--engines", str(tmp_path), "--models", str(tmp_path)])
    assert general.main() == 1
    wanted = [case.name for case in general.CASES if case.precision != "int8"]
    assert records == [{"case": name, "same": True} for name in wanted]


def test_bytes_are_counted_for_every_block() -> None:
    """Of 130 tokens and 256 features, tiles of 128 x 256 are 2: both read all weights, and together all rows."""
    read, written = linear_mma_bytes.counted_bytes((130, 64, 256), 0)
    assert read == 2 * 64 * (130 + 2 * 256)
    assert written == 2 * 130 * 256
    assert linear_mma_bytes.counted_bytes((130, 64, 256), 1)[0] == 2 * 64 * (2 * 130 + 2 * 256)
