# SPDX-License-Identifier: Apache-2.0
"""The attention benchmark's cases, targets and table, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.attention.cases import BEST, CUDNN, FA2, Target, all_cases, times_fa2
from benchmarks.attention.report import PAGE_HEADINGS, best_peer, page_cells, table
from benchmarks.provenance import made_with


def record(**changes: Any) -> dict[str, Any]:
    values = {
        "case": "H 12, B 16",
        "ours_us": 10.0,
        "tflops": 400.0,
        "peers_us": {FA2: 25.0, CUDNN: 12.0},
        "bytes_moved": 4_300_000,
        "commit": "abc",
        "max_error": 4e-4,
        "unavailable": {},
        "targets": [times_fa2(2.0).verdict(10.0, {FA2: 25.0})],
    }
    return {**values, **changes}


def test_cases_have_the_token_counts_that_targets_were_set_at() -> None:
    tokens = [case.tokens for case in all_cases()[:5]]
    assert tokens == [4564, 1314, 7547, 9194, 2176]
    assert all(case.tokens == 16384 for case in all_cases() if "16k" in case.name)
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names) == 28


def test_one_long_sequence_among_short_ones() -> None:
    case = next(case for case in all_cases() if "one of 8192" in case.name)
    assert sorted(case.lengths) == [32] * 63 + [8192]
    assert case.lengths[0] == case.lengths[-1] == 32
    assert not case.equal_lengths
    assert case.longest == 8192


def test_work_counts_valid_tokens_alone() -> None:
    case = next(case for case in all_cases() if case.name == "H 12, B 1, length 512")
    assert case.flops == 2 * 2 * 512 * 512 * 12 * 64  # two products, with a multiplication and an addition each
    assert case.bytes_moved == 4 * 512 * 12 * 64 * 2
    assert case.equal_lengths


@pytest.mark.parametrize(
    ("target", "ours_us", "met"),
    [
        (times_fa2(2.5), 10.0, True),
        (times_fa2(2.6), 10.0, False),
        (Target("best", peer=BEST), 12.0, True),
        (Target("best", peer=BEST), 12.1, False),
        (Target("1.05 x", peer=CUDNN, factor=1.05), 12.6, True),
        (Target("480 us", limit_us=480.0), 480.5, False),
    ],
)
def test_targets(target: Target, ours_us: float, met: bool) -> None:
    verdict = target.verdict(ours_us, {FA2: 25.0, CUDNN: 12.0})
    assert verdict["met"] is met
    assert verdict["stretch"] is False


def test_a_target_whose_peer_was_not_measured_is_neither_met_nor_missed() -> None:
    for target in (times_fa2(2.0), Target("best", peer=BEST)):
        assert target.verdict(1.0, {})["met"] is None


def test_table_shows_the_best_peer_and_every_target() -> None:
    lines = table([record(), record(case="other", ours_us=20.0)]).splitlines()
    assert "cuDNN 12.0" in lines[1]
    assert "1.20" in lines[1]
    assert "2 x as fast as FA2 varlen: met" in lines[1]
    assert "0.60" in lines[2]


def test_table_says_why_ours_or_peers_are_missing() -> None:
    failed = record(
        ours_us=None, tflops=None, max_error=None, peers_us={}, targets=[], unavailable={"ours": "wrong: 2.0"}
    )
    assert best_peer(failed) is None
    assert "wrong: 2.0" in table([failed])


def test_a_row_of_the_page_marks_the_fastest_and_says_what_was_asked_for() -> None:
    case = "H 12, B 16, lengths 102 to 512"  # the target is 2.2 x as fast as FA2
    assert page_cells(record(case=case)) == [case, "1.0", "**10.0**", "25.0", "12.0", "", "", "", "11.4 met"]
    slow = record(case=case, ours_us=20.0)
    assert page_cells(slow) == [case, "1.0", "20.0", "25.0", "**12.0**", "", "", "", "11.4 missed"]
    assert page_cells(record(case="of nobody"))[-1] == ""
    assert len(PAGE_HEADINGS) == len(page_cells(slow))


def test_a_row_of_the_page_has_no_fastest_among_those_that_it_leaves_out() -> None:
    assert "**" not in "".join(page_cells(record(peers_us={FA2: 25.0, "cuDNN ragged": 9.0})))


def test_peers_of_an_earlier_run_stand_in_brackets_and_count_for_the_best() -> None:
    mixed = record(case="H 12, B 1, length 128", earlier_peers={"flashinfer": 9.0, "flash-attn-4": 30.0})
    assert page_cells(mixed)[2:] == ["10.0", "25.0", "12.0", "(**9.0**)", "(30.0)", "", "(9.0 missed)"]
    slower = {**mixed, "earlier_peers": {"flashinfer": 13.0}}
    assert page_cells(slower)[-1] == "12.0 met"


def test_a_goal_whose_peer_was_not_measured_is_not_shown() -> None:
    equal = record(case="H 16, D 64, 16k tokens of 128", peers_us={FA2: 25.0})
    assert page_cells(equal)[-1] == ""
    assert page_cells({**equal, "earlier_peers": {"cuDNN": 10.0}})[-1] == "(10.5 met)"


def test_a_failed_case_has_a_row_of_the_page() -> None:
    failed = record(ours_us=None, targets=[], peers_us={})
    assert page_cells(failed)[1:] == ["1.0", *[""] * 7]


def test_what_the_page_was_measured_with() -> None:
    first, second = record(gpu="H200"), record(commit="def", gpu="H200", torch="2.11", earlier_commits=["123"])
    assert made_with([first, first]) == "Measured at commit abc: H200."
    assert made_with([first, second]) == (
        "Measured at commit abc, def: H200, PyTorch 2.11. Figures in brackets were measured at 123."
    )
    installed = {"flash-attn-4": "4.0", "unavailable": {"flash-attn-4": "ImportError: no cute"}}
    assert made_with([record(gpu="H200", **installed)]) == "Measured at commit abc: H200."
