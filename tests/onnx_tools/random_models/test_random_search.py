# SPDX-License-Identifier: Apache-2.0
"""The long search reports what is wrong, survives processes that die, and continues where it was cut off."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import random_search
from .random_search import REFUSED, RIGHT, Worker, case, done_before, pieces_of, search, verdict

SEED = 777


def test_a_wrong_case_is_named_with_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("differs by 1")

    monkeypatch.setattr(random_search, "rewrite_program", fail)
    said = verdict(SEED, 3)
    assert case(SEED, 3)[3] in said
    assert " = " in said
    assert "differs by 1" in said


@pytest.mark.slow
def test_cases_are_counted_recorded_and_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "graphs.jsonl"
    assert search(SEED, pieces_of(0, 12, set()), 1, record) == 0
    (line,) = (json.loads(text) for text in record.read_text().splitlines())
    assert (line["seed"], line["first"], line["count"], line["wrong"]) == (SEED, 0, 12, [])
    assert f"12 passed, 0 failed (seed {SEED}; {line[REFUSED]} rightly refused)" in capsys.readouterr().out
    assert done_before(record, SEED) == set(range(12))
    assert done_before(record, SEED + 1) == set()
    assert pieces_of(0, 14, done_before(record, SEED)) == [range(12, 14)]


def test_wrong_cases_are_said_at_once_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verdicts(_: Worker, piece: range) -> Iterator[tuple[int, str]]:
        for number in piece:
            if number == 4:
                assert "case 3 of seed 777 is wrong: packed, differs" in capsys.readouterr().out
            yield number, "packed, differs" if number == 3 else RIGHT

    monkeypatch.setattr(Worker, "verdicts", verdicts)
    record = tmp_path / "graphs.jsonl"
    assert search(SEED, [range(6)], 1, record) == 1
    assert json.loads(record.read_text())["wrong"] == [3]


def test_records_name_the_commit_that_a_search_began_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = iter(("first", "second", "third"))
    monkeypatch.setattr(random_search, "commit", lambda: next(commits))
    monkeypatch.setattr(Worker, "verdicts", lambda _, piece: ((number, RIGHT) for number in piece))
    record = tmp_path / "graphs.jsonl"
    assert search(SEED, [range(2), range(2, 3)], 1, record) == 0
    assert [json.loads(line)["commit"] for line in record.read_text().splitlines()] == ["first", "first"]


@pytest.mark.slow
def test_a_process_that_dies_costs_one_case() -> None:
    worker, actual = Worker(SEED), list[tuple[int, str]]()
    for number, said in worker.verdicts(range(6)):
        actual.append((number, said))
        if number == 0:
            process = worker._process
            assert process is not None
            os.kill(process.pid, signal.SIGSTOP)
            os.kill(process.pid, signal.SIGKILL)
    worker.close()
    assert [number for number, _ in actual] == list(range(6))
    assert sum("its process ended with -9" in said for _, said in actual) <= 1
    assert actual[-1][1] in (RIGHT, REFUSED)
