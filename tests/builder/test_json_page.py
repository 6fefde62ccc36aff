# SPDX-License-Identifier: Apache-2.0
"""docs/reference/json.md lists the keys that commands write, and every key has a meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builder import json_page

pytest.importorskip("pyarrow", reason="pyarrow: pip install '.[bulk]'")


def test_the_page_is_what_commands_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert json_page.DOCUMENT.read_text("utf-8") == json_page.render(), "run: python -m tests.builder.json_page"


def test_names_and_lists_are_written_as_the_page_explains() -> None:
    value = {"inputs": [{"name": "a", "limit": 1}, {"name": "b", "limit": None}], "plugins": {"Pool": 2}, "dims": [1]}
    assert list(json_page.types(value, {"plugins"})) == [
        ("inputs[].name", "string"),
        ("inputs[].limit", "int"),
        ("inputs[].name", "string"),
        ("inputs[].limit", "null"),
        ("plugins.*", "int"),
        ("dims", "list"),
    ]


def test_a_key_without_a_meaning_is_an_error() -> None:
    with pytest.raises(KeyError, match="new"):
        json_page.table(json_page.Section("A", "", {"old": "known"}, [{"old": 1, "new": 2}]))
