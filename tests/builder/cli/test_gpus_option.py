# SPDX-License-Identifier: Apache-2.0
"""--gpus is for plans: for anything else every command refuses it before it does any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from padfree.builder import cli

from tests.support.skips import without


@pytest.mark.parametrize("model", ["folder", "somebody/some-model"])
@pytest.mark.parametrize(
    ("command", "module"), [("serve MODEL", "starlette"), ("embed MODEL --input in.txt -o out", "pyarrow")]
)
def test_gpus_are_refused_before_a_folder_is_rewritten_or_a_repository_is_downloaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    module: str,
    model: str,
) -> None:
    if (reason := without(module)) is not None:
        pytest.skip(reason)

    def prepare(*_: object, **__: object) -> None:
        raise AssertionError("the model was prepared")

    monkeypatch.setattr("padfree.builder.folders.packing.runnable", prepare)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    words = [model if word == "MODEL" else word for word in command.split()]
    assert cli.main([*words, "--gpus", "0,1"]) == 1
    assert f"--gpus 0,1: is for plans, and {model} runs on the CPU" in " ".join(capsys.readouterr().err.split())
