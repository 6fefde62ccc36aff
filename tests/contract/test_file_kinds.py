# SPDX-License-Identifier: Apache-2.0
"""What stands at a path that is given as a model's, and is none."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from padfree.contract.file_kinds import refuse_special


class RefusedError(Exception):
    """What the caller of refuse_special raises."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of everything, which is the current one: names of sockets are short."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link_to_pipe").symlink_to("pipe")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("elcric")
    (tmp_path / "elcric").symlink_to("circle")
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind("socket")
    return tmp_path


@pytest.mark.parametrize("name", ["file", "link", "folder", "nowhere", "file/below"])
def test_files_folders_and_nothing_are_let_through(place: Path, name: str) -> None:
    refuse_special(place / name, RefusedError)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pipe", "is a pipe; give the path of a file"),
        ("link_to_pipe", "is a pipe; give the path of a file"),
        ("socket", "is a socket; give the path of a file"),
        ("/dev/null", "is a device; give the path of a file"),
        ("dangling", "is a symbolic link to 'nowhere', which does not exist; give the path of a file"),
        ("circle", "cannot be read (Too many levels of symbolic links); its links lead in a circle: name a file"),
    ],
)
def test_what_else_stands_there_is_told(place: Path, name: str, message: str) -> None:
    path = place / name
    with pytest.raises(RefusedError) as refused:
        refuse_special(path, RefusedError)
    assert str(refused.value) == f"{path}: {message}"
