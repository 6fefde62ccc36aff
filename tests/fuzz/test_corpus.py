# SPDX-License-Identifier: Apache-2.0
"""Inputs that were not taken well once, and fixed seeds: each gives an answer or a message of its own."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from .__main__ import CORPUS, problems
from .damage import CHANGES, damaged_bytes, damaged_model
from .targets import TARGETS, FindError, command

SEEDS = {"models": 40, "rewritten": 25, "sidecars": 60}
FIRST = 20261122


@pytest.mark.parametrize("door", TARGETS)
def test_what_was_found_once_is_taken_well(door: str, tmp_path: Path) -> None:
    files = []
    for path in sorted((CORPUS / door).glob("*.gz")):
        files.append(str(tmp_path / path.stem))
        Path(files[-1]).write_bytes(gzip.decompress(path.read_bytes()))
    if files:
        assert problems(door, files) == (len(files), {})


@pytest.mark.parametrize("door", TARGETS)
def test_damaged_inputs_are_taken_well(door: str) -> None:
    assert problems(door, [str(FIRST), str(SEEDS[door])]) == (SEEDS[door], {})


def test_every_door_has_whole_inputs_that_are_read(tmp_path: Path) -> None:
    for door, target in TARGETS.items():
        for name, data in target.bases().items():
            folder = tmp_path / door / name
            folder.mkdir(parents=True)
            target.read(data, folder)


def test_damage_is_damage() -> None:
    (base, *_) = TARGETS["models"].bases().values()
    rng = np.random.default_rng(0)
    assert sum(damaged_bytes(base, rng) != base for _ in range(50)) > 45
    assert sum(damaged_model(base, rng) != base for _ in range(50)) > 45
    assert len(CHANGES) == len(set(CHANGES))


def test_an_error_that_nobody_foresaw_is_a_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from padfree.builder.cli import inspect

    def broken(_: object) -> int:
        raise KeyError("x")

    monkeypatch.setattr(inspect, "run", broken)
    folder = tmp_path / "input"
    folder.mkdir()
    with pytest.raises(FindError, match="KeyError"):
        command(folder, "inspect", "model.onnx")


def test_files_elsewhere_are_a_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from padfree.builder.cli import inspect

    def careless(_: object) -> int:
        (tmp_path / "elsewhere").write_text("x")
        return 0

    monkeypatch.setattr(inspect, "run", careless)
    folder = tmp_path / "input"
    folder.mkdir()
    with pytest.raises(FindError, match="wrote beside"):
        command(folder, "inspect", "model.onnx")
