# SPDX-License-Identifier: Apache-2.0
"""docs/guide/gpus.md: the code that it names serves its cards, and the cards that it calls run have a record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from padfree.builder.operator_check.cases import all_cases
from padfree.builder.operator_check.checking import CaseResult
from padfree.builder.operator_check.peaks import Peaks
from padfree.builder.operator_check.reference import LARGEST_ERRORS
from padfree.builder.operator_check.report import make_report
from padfree.contract.architectures import OF_MAJOR, architecture_for

from tests.support.pages import page

ROOT = Path(__file__).resolve().parents[2]
PAGE = page("gpus").read_text("utf-8")
REPORTS = ROOT / "benchmarks" / "results" / "gpus"
RECORDS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"


def table(head: str) -> list[list[str]]:
    """The rows of the table whose first column is called `head`, as lists of cells."""
    lines = PAGE.split(f"| {head} |", 1)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


CARDS = table("card")


@pytest.mark.parametrize("row", CARDS, ids=lambda row: row[0])
def test_cards_are_served_by_the_code_that_is_named(row: list[str]) -> None:
    _, capability, code, state, _ = row
    needed = architecture_for(capability)
    assert code.strip("`") == (needed or "none")
    assert (state == "refused") == (needed is None)


def test_every_code_has_a_card() -> None:
    assert {row[2].strip("`") for row in CARDS} == {*OF_MAJOR.values(), "none"}


def test_states_are_those_that_are_explained() -> None:
    assert {row[3] for row in CARDS} <= {row[0] for row in table("state")}


def recorded_gpus() -> set[str]:
    """The GPUs of the records, and of the reports that show nothing wrong."""
    names = set(re.findall(r'"gpu": "NVIDIA ([^"]+)"', "".join(p.read_text() for p in RECORDS.glob("*/engines.jsonl"))))
    for path in REPORTS.glob("*.json"):
        report = json.loads(path.read_text())
        assert set(report["counts"]) <= {"right", "not here"}, path
        names.add(report["gpu"]["name"].removeprefix("NVIDIA "))
    return names


def test_what_is_called_run_has_a_record_and_the_other_way_round() -> None:
    run = [name for row in CARDS if row[3] == "run" for name in row[0].split(", ")]
    for name in run:
        assert any(name in actual for actual in recorded_gpus()), name
    for actual in recorded_gpus():
        assert any(name in actual for name in run), f"{actual} has run: say so in docs/guide/gpus.md"


def test_as_many_engines_have_passed_as_the_pages_say() -> None:
    records = map(json.loads, (RECORDS / "h200" / "engines.jsonl").read_text("utf-8").splitlines())
    last = {(item["source"], item["name"], item["interface"], item["precision"]): item["status"] for item in records}
    passed = [key for key, status in last.items() if status == "passed"]
    assert "over 600 engines of over 200 models" in PAGE
    assert "over 600 engines" in README.read_text("utf-8")
    assert len(passed) > 600
    assert len({key[:2] for key in passed}) > 200


def test_the_template_is_a_report() -> None:
    template = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])
    case = CaseResult("PadfreePool", "mean", "fp16", "right", 0.1, 0.2, 0.3, 0.4, "bytes")
    peaks = Peaks(8, 9, 58, 2040.0, 240.0)
    report = make_report([case], {"gpu": {"name": "NVIDIA L4", **vars(peaks)}, "tensorrt": "10.6.0"}, "0.1.0")
    assert list(template) == list(report)
    assert list(template["gpu"]) == list(report["gpu"])
    assert list(template["library"]) == list(report["library"])
    assert list(template["cases"][0]) == list(report["cases"][0])
    assert template["counts"]["right"] == len(all_cases())


def test_what_is_allowed_is_what_is_written() -> None:
    written = {row[0].replace("e4m3", "fp8"): float(row[1]) for row in table("type")}
    assert written == dict(LARGEST_ERRORS)
