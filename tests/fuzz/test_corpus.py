# SPDX-License-Identifier: Apache-2.0
"""Inputs that were once not handled well, and fixed seeds: each gives an answer or a proper error message."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .__main__ import CORPUS, ROOT, problems
from .damage import CHANGES, damaged_bytes, damaged_model
from .finds import FindError
from .lengths import DAMAGED, FAULT
from .targets import TARGETS, command

SEEDS = {"models": 20, "rewritten": 12, "sidecars": 30, "bodies": 1000, "arrays": 30, "lengths": 60}
FIRST = 20261122
MARKS = {"lengths": [pytest.mark.gpu]}
DOORS = [pytest.param(door, marks=MARKS.get(door, [])) for door in TARGETS]
SLOW = {door: [pytest.mark.slow] for door in ("arrays", "models", "sidecars", "rewritten")}


@pytest.fixture(autouse=True)
def _open(request: pytest.FixtureRequest) -> None:
    door = request.node.callspec.params.get("door") if hasattr(request.node, "callspec") else None
    if door is not None and (reason := TARGETS[door].missing()) is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("door", DOORS)
def test_what_was_found_once_is_taken_well(door: str, tmp_path: Path) -> None:
    files = []
    for path in sorted((CORPUS / door).glob("*.gz")):
        files.append(str(tmp_path / path.stem))
        Path(files[-1]).write_bytes(gzip.decompress(path.read_bytes()))
    if files:
        assert problems(door, files) == (len(files), {})


@pytest.mark.parametrize("door", [pytest.param(door, marks={**MARKS, **SLOW}.get(door, [])) for door in TARGETS])
def test_damaged_inputs_are_taken_well(door: str) -> None:
    assert problems(door, [str(FIRST), str(SEEDS[door])]) == (SEEDS[door], {})


@pytest.mark.parametrize("door", DOORS)
def test_every_door_has_whole_inputs_that_are_read(door: str, tmp_path: Path) -> None:
    for name, data in TARGETS[door].bases().items():
        folder = tmp_path / name
        folder.mkdir()
        TARGETS[door].read(data, folder)


def test_damaged_lengths_keep_their_shapes() -> None:
    """Callers do not choose shapes: what a kernel gets besides the damaged values is right."""
    target, changed = TARGETS["lengths"], 0
    for seed in range(50):
        case = json.loads(target.case(seed))
        shapes = {name: len(case[name]) for name in DAMAGED}
        assert shapes["cu_seqlens"] == shapes["seq_lens"] + 1
        assert len({shapes[name] for name in ("ids", "types", "positions", "token_index")}) == 1
        assert all(-(2**31) <= number < 2**31 for name in DAMAGED for number in case[name])
        changed += sum(case["seq_lens"]) + 9 != shapes["ids"]
    assert changed > 5


def test_damage_is_damage() -> None:
    (base, *_) = TARGETS["models"].bases().values()
    rng = np.random.default_rng(0)
    assert sum(damaged_bytes(base, rng) != base for _ in range(50)) > 45
    assert sum(damaged_model(base, rng) != base for _ in range(50)) > 45
    assert len(CHANGES) == len(set(CHANGES))


def test_an_error_that_nobody_foresaw_is_a_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from padfree.builder.cli import inspect

    def fail(_: object) -> int:
        raise KeyError("x")

    monkeypatch.setattr(inspect, "run", fail)
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


OUTSIDE = """
from tests.fuzz import lengths
from tests.support.launchers import Int64, call
memory = lengths.Memory()
x, index = memory.fill("x", [[1.0] * 8] * 4, "float16"), memory.fill("index", [0] * 4, "int32")
y = memory.empty("y", (4, 8), "float16")
lengths._run("pack", lambda: call("padfreePack", x, index, y, {tokens}, Int64(4), Int64(16)))
"""


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "code"), [(4, 0), (5, FAULT), (4096, FAULT)])
def test_a_kernel_that_reads_outside_ends_its_process(tokens: int, code: int) -> None:
    if (reason := TARGETS["lengths"].missing()) is not None:
        pytest.skip(reason)
    ran = subprocess.run(
        [sys.executable, "-c", OUTSIDE.format(tokens=tokens)], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == code, ran.stderr
