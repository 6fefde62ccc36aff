# SPDX-License-Identifier: Apache-2.0
"""Definitions that were compared with no other code say so, on the screen and in the report; others do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from padfree.builder import cli
from padfree.onnx_tools import load_model
from padfree.onnx_tools.files import read_metadata

from tests.support import tiny_folders

OWN = "own definition"


@pytest.mark.parametrize(("name", "is_own"), [("jina_v2", True), ("nomic", False)])
def test_it_is_said(name: str, is_own: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_folders.write_reference(tiny_folders.read(name), tmp_path / "model")
    assert cli.main(["optimize", str(folder), "-o", str(tmp_path / "packed.onnx"), "--pooling", "mean"]) == 0
    shown = capsys.readouterr()
    assert (f"({OWN})" in shown.err) == is_own
    assert ("is padfree's own definition" in " ".join(shown.out.split())) == is_own
    metadata: Any = read_metadata(load_model(tmp_path / "packed.onnx"))
    assert metadata["definition"]["own"] == is_own
    assert any("is padfree's own definition" in note for note in metadata["coverage"]["notes"]) == is_own
