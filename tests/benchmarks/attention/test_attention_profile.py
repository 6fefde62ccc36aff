# SPDX-License-Identifier: Apache-2.0
"""Profiles of the attention kernels: reading ncu's report, and reporting ncu's refusals, without a GPU."""

from __future__ import annotations

import csv
import io
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.attention import profile as attention_profile
from benchmarks.attention.cases import all_cases
from benchmarks.attention.profile import records
from benchmarks.attention.report import PROFILE_HEADINGS, profile_cells
from benchmarks.kernels import nsight_compute
from benchmarks.kernels.nsight_compute import METRICS, profiles

CASE = all_cases()[0]
KERNEL = "void unnamed>::attentionSm90Kernel<Sm90Shape<__half, 64, 128, 4>>(AttentionParams, AttentionMaps)"
PRINTED = {
    "time_us": ("us", "26.432000"),
    "sm_clocks": ("cycle", "46938.530303"),
    "sm_clocks_busy": ("cycle", "34227.962121"),
    "sm_clocks_busiest": ("cycle", "43513.000000"),
    "tensor_pct": ("%", "30.529000"),
    "xu_pct": ("%", "29.771379"),
    "issue_pct": ("%", "35.451767"),
    "warps": ("warp", "13.502877"),
    "blocks": ("", "1,056"),
    "multiprocessors": ("SM", "132"),
    "shared_bytes": ("Kbyte/block", "201.712000"),
    "dram_read_bytes": ("Mbyte", "21.096704"),
    "dram_write_bytes": ("byte", "464,128"),
    "l2_read_bytes": ("Gbyte", "0.038447"),
    "l2_write_bytes": ("Mbyte", "13.658368"),
}
"""Units and values of a launch on an H200, as ncu prints them; metrics that are left out are 0."""
WAITS = (("selected", "1.0"), ("long_scoreboard", "2.25"), ("barrier", "1.75"), ("membar", "0"))


def report(launches: int = 1, without: str = "") -> str:
    """A report as ncu prints it: its own lines, then names, units and a row per launch."""
    columns = {"ID": ("", "0"), "Kernel Name": ("", KERNEL)}
    columns |= {metric: PRINTED.get(field, ("", "0")) for field, metric in METRICS.items()}
    columns |= {f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio": ("inst", n) for why, n in WAITS}
    columns.pop(without, None)
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([columns, [unit for unit, _ in columns.values()]])
    writer.writerows([[value for _, value in columns.values()]] * launches)
    return "==PROF== Disconnected\n" + text.getvalue()


def test_values_come_in_microseconds_bytes_and_shares() -> None:
    (actual,) = profiles(report())
    assert actual["kernel"] == "attentionSm90Kernel"
    assert actual["time_us"] == 26.432
    assert actual["blocks"] == 1056
    assert actual["shared_bytes"] == 201_712
    assert (actual["dram_read_bytes"], actual["dram_write_bytes"]) == (21_096_704, 464_128)
    assert actual["l2_read_bytes"] == 38_447_000
    assert actual["stalls"]["long_scoreboard"] == 0.45
    assert sum(actual["stalls"].values()) == 1


def test_milliseconds_and_nanoseconds_are_microseconds() -> None:
    assert nsight_compute.value_of("1,808.5", "ns") == pytest.approx(1.8085)
    assert nsight_compute.value_of("1.5", "ms") == 1500


def test_a_report_without_launches_or_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no launch: .*No kernels were profiled"):
        profiles("==WARNING== No kernels were profiled.\n")
    with pytest.raises(ValueError, match="no launch"):
        profiles(report(launches=0))
    with pytest.raises(ValueError, match=r"lacks gpu__time_duration\.sum: profile on Hopper"):
        profiles(report(without="gpu__time_duration.sum"))
    with pytest.raises(ValueError, match="lacks WarpStateStats"):
        profiles(report().replace("issue_stalled", "issue_other"))


def test_a_record_has_the_least_clocks_of_its_case() -> None:
    (record,) = records([CASE], profiles(report()))
    assert record["case"] == "H 12, B 16, lengths 102 to 512"
    assert record["bytes_moved"] == 4 * 4564 * 12 * 64 * 2
    assert record["least_tensor_clocks"] == record["least_exp_clocks"] == 8333
    (wide,) = records([replace(CASE, head_size=128)], profiles(report()))
    assert wide["least_tensor_clocks"] == 2 * 8333 - 1  # rounded once
    assert wide["least_exp_clocks"] == 8333
    with pytest.raises(ValueError, match="2 cases, but ncu saw 1"):
        records([CASE, CASE], profiles(report()))


def test_a_row_of_the_page() -> None:
    (record,) = records([CASE], profiles(report()))
    cells = dict(zip(PROFILE_HEADINGS, profile_cells(record), strict=True))
    assert cells["k clocks: all, busiest, mean"] == "46.9, 43.5, 34.2"
    assert cells["least k clocks: bytes, GEMMs, exponentials"] == "11.6, 8.3, 8.3"
    assert cells["tensor cores, XU, issue slots"] == "31, 30, 35 %"
    assert cells["memory, MB: read, written"] == "21.1, 0.5"
    assert cells["needed, MB: read, written"] == "21.0, 7.0"
    assert cells["warps wait for"].startswith("long scoreboard 45%, barrier 35%, ")


def test_cases_are_those_that_missed_their_goal_or_that_a_pattern_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [case.name for case in attention_profile.choose("of 8192 among")] == ["H 12, one of 8192 among 63 of 32"]
    with pytest.raises(SystemExit, match="'nothing' finds no case"):
        attention_profile.choose("nothing")
    lines: list[dict[str, Any]] = [{"case": c.name, "targets": [{"met": c.name != CASE.name}]} for c in all_cases()]
    monkeypatch.setattr(attention_profile, "read", lambda _: [*lines, {"case": "without goals", "targets": []}])
    assert attention_profile.choose(None) == [CASE]
    monkeypatch.setattr(attention_profile, "read", lambda _: lines[1:])
    with pytest.raises(SystemExit, match="no goal is missed"):
        attention_profile.choose(None)


@pytest.mark.parametrize(
    ("output", "status", "told"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", 1, "run as root"),
        ("==ERROR== Unknown metric", 3, r"ncu ended with 3:\n==ERROR== Unknown metric"),
    ],
)
def test_what_ncu_refuses_is_told(monkeypatch: pytest.MonkeyPatch, output: str, status: int, told: str) -> None:
    def refuses(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, status, output)

    monkeypatch.setattr(subprocess, "run", refuses)
    with pytest.raises(SystemExit, match=told):
        nsight_compute.profile("/opt/bin/ncu", "attention", "benchmarks.attention.profile", [CASE.name])


def test_ncu_and_the_library_have_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["attention_profile.py", "--ncu", "no-such-ncu"])
    with pytest.raises(SystemExit, match="no-such-ncu not found"):
        attention_profile.main()
    monkeypatch.setattr("sys.argv", ["attention_profile.py", "--ncu", "sh"])
    monkeypatch.delenv("PADFREE_KERNELS_LIBRARY", raising=False)
    with pytest.raises(SystemExit, match="PADFREE_KERNELS_LIBRARY"):
        attention_profile.main()
