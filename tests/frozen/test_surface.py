# SPDX-License-Identifier: Apache-2.0
"""What callers may rely on is still there: names, options, keys of JSON, operators, variables, metrics.

`surface.json` lists it as it was on 2026-11-28. New lines may be added; a line that disappears is a breaking change,
which the changelog has to mention.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .surface import ROOT, importable, imports, surface

FROZEN: dict[str, list[str]] = json.loads(Path(__file__).with_name("surface.json").read_text("utf-8"))
PROGRAMS = "imports"
"""Checked by whether they can still be imported, because the documents may be rewritten."""


@pytest.fixture(scope="module")
def today() -> dict[str, list[str]]:
    return surface()


@pytest.mark.parametrize("section", sorted(FROZEN.keys() - {PROGRAMS}))
def test_everything_that_was_there_is(section: str, today: dict[str, list[str]]) -> None:
    assert sorted({*FROZEN[section]} - {*today[section]}) == []


def test_programs_of_users_import_what_they_did() -> None:
    assert [name for name in sorted({*FROZEN[PROGRAMS], *imports(ROOT)}) if not importable(name, ROOT)] == []


def test_names_that_are_gone_are_seen() -> None:
    assert not importable("padfree.runtime:Sessions", ROOT)
    assert not importable("padfree.run", ROOT)
