# SPDX-License-Identifier: Apache-2.0
"""The tests that pages name for their promises exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import page

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("serving", "security", "bulk-jobs", "triton-backend")
_NAME = re.compile(r"`(test_\w+)`")


@pytest.fixture(scope="module")
def tests() -> set[str]:
    match = re.compile(r"^def (test_\w+)\(", re.MULTILINE)
    return {name for file in (ROOT / "tests").rglob("test_*.py") for name in match.findall(file.read_text("utf-8"))}


@pytest.mark.parametrize("name", PAGES)
def test_promises_have_their_tests(name: str, tests: set[str]) -> None:
    named = set(_NAME.findall(page(name).read_text("utf-8")))
    assert named
    assert named <= tests, sorted(named - tests)
