# SPDX-License-Identifier: Apache-2.0
"""benchmarks.rewriting on one small file, with this tree as both commits."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from benchmarks.rewriting import __main__ as rewriting
from benchmarks.rewriting.measurement import Times, Worker, compare


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree of the same code, with one fixture."""
    folder, root = tmp_path / "tree", Path(__file__).resolve().parents[2]
    fixtures = folder / "tests" / "fixtures"
    fixtures.mkdir(parents=True)
    for item in root.iterdir():
        if item.name not in ("tests", ".git"):
            (folder / item.name).symlink_to(item)
    shutil.copy(root / "tests" / "fixtures" / "bert_dynamo.onnx", fixtures)
    return folder


def test_both_commits_are_measured(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewriting.main(["--before", str(tree), "--rounds", "1", "--interfaces", "packed"])
    assert re.search(r"1 files, 1 rewritings: \d+\.\d\d s before, \d+\.\d\d s after", capsys.readouterr().out)


def test_files_that_one_commit_refuses_are_left_out(tree: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.onnx"
    wrong.write_bytes(b"no model")
    right = tree / "tests" / "fixtures" / "bert_dynamo.onnx"
    with Worker(tree, tmp_path / "before") as before, Worker(tree, tmp_path / "after") as after:
        (times,) = compare([before, after], [wrong, right], ["packed"], rounds=1)
    assert isinstance(times, Times)
    assert times.name == "bert_dynamo"
    assert times.before > 0
    assert times.after > 0
