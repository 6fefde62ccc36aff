# SPDX-License-Identifier: Apache-2.0
"""Files without permission, full disks, closed outputs and names that are not UTF-8: each is called what it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.folders import write_folder

ModelWriter = Callable[..., Path]
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
"""Runs a command as root without the right to ignore permissions."""
PERMISSIONS = "check its permissions, and those of its folders"


def padfree(folder: Path, *arguments: object, prefix: Sequence[str] = (), shell: str = "") -> tuple[int, str]:
    """The exit code and stderr of a command, whose output `shell` may redirect."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*prefix, sys.executable, "-m", "padfree", *map(str, arguments)]
    if shell:
        command = ["sh", "-c", f'"$@" {shell}', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=120)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.fixture
def bound() -> Sequence[str]:
    """The prefix of a command that makes permissions apply to it."""
    if os.geteuid():
        return ()
    if shutil.which(WITHOUT_RIGHTS[0]) is None:
        pytest.skip("root without setpriv (util-linux) may read everything")
    return WITHOUT_RIGHTS


@pytest.fixture
def place(packed_model: ModelWriter, tmp_path: Path) -> Path:
    """A rewritten model, a folder and a batch."""
    packed_model().replace(tmp_path / "packed.onnx")
    write_folder(tmp_path / "folder")
    (tmp_path / "batch.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    (tmp_path / "texts.txt").write_text("a cat\n")
    return tmp_path


RUN = "run packed.onnx --input batch.jsonl -o out.npz"


@pytest.mark.parametrize(
    ("locked", "command"),
    [
        ("packed.onnx", RUN),
        ("batch.jsonl", RUN),
        ("folder/modules.json", "inspect folder"),
        pytest.param("packed.onnx", "inspect packed.onnx", marks=pytest.mark.slow),
        pytest.param("packed.onnx", "embed packed.onnx --input texts.txt -o vectors", marks=pytest.mark.slow),
        pytest.param("folder", "inspect folder", marks=pytest.mark.slow),
        pytest.param("folder/config.json", "inspect folder", marks=pytest.mark.slow),
        pytest.param("folder/tokenizer.json", "optimize folder -o out.onnx", marks=pytest.mark.slow),
    ],
)
def test_permissions_are_no_damage(place: Path, bound: Sequence[str], locked: str, command: str) -> None:
    if command.startswith("embed"):
        pytest.importorskip("pyarrow", reason="pyarrow: pip install '.[bulk]'")
    (place / locked).touch()  # modules.json, which the small folder lacks
    (place / locked).chmod(0)
    try:
        code, error = padfree(place, *command.split(), prefix=bound)
    finally:
        (place / locked).chmod(0o700)
    assert code == 1
    assert "Permission denied" in error
    assert "check its permissions" in error
    assert "download" not in error
    assert "PADFREE_DEBUG" not in error


def test_an_output_that_cannot_be_written_is_named(place: Path) -> None:
    code, error = padfree(place, *RUN.split(), shell="> /dev/full")
    assert code == 1
    assert error.endswith(
        "padfree: error: standard output: No space left on device; free space there, or choose another folder\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("closing", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_outputs_change_nothing(place: Path, closing: str) -> None:
    code, error = padfree(place, *RUN.split(), shell=closing)
    assert (code, error) == (0, "")
    assert (place / "out.npz").stat().st_size


def test_letters_that_the_output_does_not_have_are_escaped(place: Path) -> None:
    (place / "packed.onnx").rename(place / "größe 大.onnx")
    code, error = padfree(place, "inspect", "größe 大.onnx", prefix=["env", "PYTHONIOENCODING=latin-1"], shell="> out")
    assert (code, error) == (0, "")
    assert "größe \\u5927.onnx" in (place / "out").read_text("latin-1")


@pytest.mark.slow
def test_names_that_are_not_utf_8(place: Path) -> None:
    strange = os.fsdecode(b"str\xffange.onnx")
    code, error = padfree(place, "optimize", "folder", "-o", strange)
    assert code == 1
    assert (
        error
        == "padfree: error: -o str\\udcffange.onnx: is not UTF-8, which other programs need; choose another path\n"
    )
    (place / "packed.onnx").rename(place / strange)
    code, error = padfree(place, "run", strange, "--input", "batch.jsonl", "-o", "out.npz")
    assert code == 1
    assert "str\\udcffange.onnx: its name, or that of a folder above it, is not UTF-8; rename it" in error
