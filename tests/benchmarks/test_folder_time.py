# SPDX-License-Identifier: Apache-2.0
"""benchmarks.engine.folder_time: its command line."""

from __future__ import annotations

import pytest

from benchmarks.engine import folder_time


@pytest.mark.parametrize("given", ["--help", "nothing"])
def test_the_shapes_are_named(given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["folder_time", given])
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        folder_time.main()
    said = "".join(capsys.readouterr())
    assert ", ".join(folder_time.SHAPES) in said
    assert "[]" not in said


def test_without_names_those_with_a_goal_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []
    monkeypatch.setattr("sys.argv", ["folder_time", "--cpu"])
    monkeypatch.setattr(folder_time, "write_folder", lambda shape, _folder: measured.append(shape))
    monkeypatch.setattr(folder_time, "run", lambda _command: (1.0, {}, 0.0))
    folder_time.main()
    assert measured == [folder_time.SHAPES[name] for name in folder_time.GOALS_S]
