# SPDX-License-Identifier: Apache-2.0
"""Folders as the hub has them: every entry of their config.json and every name of a tensor, at tiny sizes.

tests/fixtures/popular_folders.json was made from public copies of config.json and of code that reads the weights;
make_popular.py adds types that transformers knows. docs/reference/popular-folders.md shows it as a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.definitions.errors import NotDefinedError
from padfree.builder.errors import BuildError
from padfree.builder.folders.definition import write_defined
from padfree.builder.folders.folder import read_folder

from tests.builder.definitions import popular_table
from tests.support.popular import FOLDERS, outcome, write_entry

KNOWN = [entry for entry in FOLDERS if entry["family"]]
REFUSED = [entry for entry in FOLDERS if entry["refused"]]
LEAST_PACKED = 44


def name(entry: Mapping[str, Any]) -> str:
    return str(entry["folder"])


@pytest.mark.parametrize("entry", KNOWN, ids=name)
def test_folders_that_are_known(entry: Mapping[str, Any], tmp_path: Path) -> None:
    actual = outcome(entry, tmp_path)
    assert actual.family == entry["family"]
    assert actual.is_complete


@pytest.mark.parametrize("entry", REFUSED, ids=name)
def test_folders_that_are_not(entry: Mapping[str, Any], tmp_path: Path) -> None:
    with pytest.raises((NotDefinedError, BuildError), match=re.escape(entry["refused"])):
        write_defined(read_folder(write_entry(entry, tmp_path)))


def test_most_of_fifty_are_packed() -> None:
    assert len(FOLDERS) == len({name(entry) for entry in FOLDERS}) == 50
    assert len(KNOWN) + len(REFUSED) == 50
    assert len(KNOWN) >= LEAST_PACKED


def test_entries_from_memory_are_those_that_no_copy_confirms() -> None:
    assert {name(entry) for entry in FOLDERS if entry["source"] == "memory"} == {
        name(entry) for entry in FOLDERS if not entry["confirmed"]
    }


@pytest.mark.slow
def test_the_page_is_what_the_command_writes() -> None:
    assert popular_table.PAGE.read_text("utf-8") == popular_table.page()
