# SPDX-License-Identifier: Apache-2.0
"""Folders as the hub has them: every entry of their config.json and every name of a tensor, at tiny sizes.

tests/fixtures/popular_folders.json was written by hand from public copies of config.json and from code that reads the
weights; docs/guide/folders.md has the table of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.definitions.errors import NotDefinedError
from padfree.builder.errors import BuildError
from padfree.builder.folders.defined import write_defined
from padfree.builder.folders.folder import read_folder
from padfree.onnx_tools.files.weights import Storage
from padfree.onnx_tools.rewrite import rewrite_model

from tests.support import defined
from tests.support.folders import write_json
from tests.support.pages import page
from tests.support.safetensors_files import write_tensors

FOLDERS: list[Mapping[str, Any]] = json.loads((defined.FOLDER.parent / "popular_folders.json").read_text("utf-8"))
KNOWN = [entry for entry in FOLDERS if entry["family"]]
REFUSED = [entry for entry in FOLDERS if entry["refused"]]


def name(entry: Mapping[str, Any]) -> str:
    return str(entry["folder"])


def write_entry(entry: Mapping[str, Any], path: Path) -> Path:
    """The folder, with sentence-transformers' chain where it has one."""
    write_json(path / "config.json", entry["config"])
    tensors = {name: defined.drawn(name, tuple(shape)) for name, shape in entry["tensors"].items()}
    write_tensors(path / "model.safetensors", tensors)
    if entry["pooling"]:
        kind = "sentence_transformers.models"
        listed = [("", entry.get("encoder", f"{kind}.Transformer")), ("1_Pooling", f"{kind}.Pooling")]
        modules = [
            {"idx": number, "name": str(number), "path": place, "type": module}
            for number, (place, module) in enumerate(listed)
        ]
        write_json(path / "modules.json", modules)
        write_json(path / "1_Pooling" / "config.json", {"pooling_mode": entry["pooling"]})
    return path


@pytest.mark.parametrize("entry", KNOWN, ids=name)
def test_folders_that_are_known(entry: Mapping[str, Any], tmp_path: Path) -> None:
    folder = read_folder(write_entry(entry, tmp_path))
    found = write_defined(folder)
    assert found.name == entry["family"]
    rewrite_model(found.model(Storage.MEMORY), interface="packed", precision="fp32", strict=True, verify=False)


@pytest.mark.parametrize("entry", REFUSED, ids=name)
def test_folders_that_are_not(entry: Mapping[str, Any], tmp_path: Path) -> None:
    with pytest.raises((NotDefinedError, BuildError), match=re.escape(entry["refused"])):
        write_defined(read_folder(write_entry(entry, tmp_path)))


def test_the_table_is_in_the_docs() -> None:
    text = page("folders").read_text("utf-8")
    for entry in FOLDERS:
        assert re.search(
            rf"^\| {re.escape(entry['folder'])} \| {re.escape(entry['family'] or 'not known')}", text, re.M
        )
