# SPDX-License-Identifier: Apache-2.0
"""The table of the benchmark of memory-bound kernels, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernels import row_report


def record(**changes: Any) -> dict[str, Any]:
    values = {
        "case": "pack, T 16384, E 768",
        "tokens": 16384,
        "bytes": 50_000_000,
        "ours_us": 12.5,
        "copy_share": 0.8,
        "peers_us": {"PyTorch": 15.76},
        "chain_us": 11.0,
        "chain_plain_us": 11.75,
    }
    return {**values, **changes}


def test_a_row_shows_every_time() -> None:
    heading, _, row = row_report.table([record()]).splitlines()
    assert heading.startswith("| kernel | us | TB/s |")
    assert row == "| pack, T 16384, E 768 | 12.5 | 4.00 | 80% | 15.8 | 11.00 | 11.75 |"


def test_slower_than_the_copy_is_a_miss_at_full_size_alone() -> None:
    slow, small = record(copy_share=0.79), record(copy_share=0.5, tokens=128)
    assert not row_report.reaches_copy(slow)
    assert row_report.reaches_copy(small)
    _, _, first, second = row_report.table([slow, small]).splitlines()
    assert "| 79% MISSED |" in first
    assert "| 50% |" in second


def test_the_command_prints_the_last_record_of_every_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    records = [record(ours_us=20.0), record(case="other"), record()]
    path.write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")
    monkeypatch.setattr("sys.argv", ["row_report.py", str(path)])
    assert row_report.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "| 12.5 |" in lines[2]
    assert lines[3].startswith("| other |")
