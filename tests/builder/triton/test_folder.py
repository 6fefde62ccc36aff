# SPDX-License-Identifier: Apache-2.0
"""Folders are written whole or not at all, and nothing of anybody else's is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from padfree.builder import BuildError
from padfree.builder.triton.folder import Files, write_folder

FILES: Files = {"a/config": b"1", "b": b"2"}


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("prepare", [lambda _path: None, Path.mkdir], ids=["new", "empty"])
def test_the_same_files_give_the_same_bytes(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    folder = tmp_path / "models"
    prepare(folder)
    write_folder(folder, FILES, overwrite=False)
    first = content(folder)
    assert {name: first[name] for name in FILES} == FILES
    write_folder(folder, FILES, overwrite=False)
    assert content(folder) == first
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_new_version_replaces_the_old_one_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    write_folder(folder, FILES, overwrite=False)
    write_folder(folder, {"c": b"3"}, overwrite=False)
    assert sorted(content(folder)) == ["c", "padfree.json"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_folders_of_others_stay(tmp_path: Path, overwrite: bool) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(BuildError, match="holds files that padfree triton did not write"):
        write_folder(folder, FILES, overwrite=overwrite)
    assert content(folder) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "b").write_bytes(b"edited"), "b was changed"),
        (lambda folder: (folder / "b").unlink(), "b was removed"),
        (lambda folder: (folder / "a" / "more").touch(), "a/more was added"),
    ],
)
def test_changes_are_lost_only_when_asked(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    folder = tmp_path / "models"
    write_folder(folder, FILES, overwrite=False)
    change(folder)
    changed = content(folder)
    with pytest.raises(BuildError, match=f"{message} since padfree triton wrote it; .* pass --overwrite"):
        write_folder(folder, FILES, overwrite=False)
    assert content(folder) == changed
    write_folder(folder, FILES, overwrite=True)
    assert content(folder)["b"] == b"2"


def test_a_failure_on_the_way_changes_nothing(tmp_path: Path) -> None:
    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    folder = tmp_path / "models"
    write_folder(folder, FILES, overwrite=False)
    before = content(folder)
    with pytest.raises(BuildError, match=r"cannot be written \(No space left on device\); nothing was changed"):
        write_folder(folder, {"a": b"new", "z": full}, overwrite=False)
    assert content(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_the_old_one_comes_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    write_folder(folder, FILES, overwrite=False)
    before, rename = content(folder), Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(BuildError, match="Input/output error"):
        write_folder(folder, {"b": b"new"}, overwrite=False)
    assert content(folder) == before


def test_places_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, message in ((tmp_path / "file", "is no folder"), (tmp_path / "no" / "models", "mkdir -p")):
        with pytest.raises(BuildError, match=message):
            write_folder(path, FILES, overwrite=True)
