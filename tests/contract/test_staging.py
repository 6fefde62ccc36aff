# SPDX-License-Identifier: Apache-2.0
"""Unfinished files: their names, their permissions, and what becomes of them if they are never completed."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import BinaryIO

import pytest
from padfree.contract import staging


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_names_cannot_be_guessed_and_fit_the_file_system(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    seen = []
    for _ in range(2):
        staging.write_atomically(path, lambda stream: seen.append(Path(f"/proc/self/fd/{stream.fileno()}").readlink()))
    assert seen[0] != seen[1]
    for name in (path.name for path in seen):
        assert name.startswith(".xxx")
        assert name.endswith(".partial")
        assert str(os.getpid()) not in name.split(".")
    assert names(tmp_path) == [path.name]


def test_planted_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    planted = tmp_path / "planted.partial"
    planted.symlink_to(victim)
    monkeypatch.setattr(staging, "partial_path", lambda _path: planted)
    with pytest.raises(FileExistsError):
        staging.write_atomically(tmp_path / "out", lambda stream: stream.write(b"new"))
    assert victim.read_text() == "mine"
    assert names(tmp_path) == ["planted.partial", "victim"]


def test_the_users_umask_holds_and_nobody_sees_another(tmp_path: Path) -> None:
    seen: set[int] = set()
    done = threading.Event()

    def watch() -> None:  # sees the permissions that other threads' files get meanwhile
        count = 0
        while not done.is_set():
            count += 1
            file = tmp_path / f"watch{count}"
            file.touch()
            seen.add(stat.S_IMODE(file.stat().st_mode))

    before = os.umask(0o077)
    try:
        watcher = threading.Thread(target=watch)
        watcher.start()
        for number in range(200):
            staging.write_atomically(tmp_path / f"out{number}", lambda stream: stream.write(b"x"))
        done.set()
        watcher.join()
        assert {stat.S_IMODE((tmp_path / f"out{number}").stat().st_mode) for number in range(200)} == {0o600}
        assert seen == {0o600}
    finally:
        done.set()
        os.umask(before)


@pytest.mark.parametrize("link", [False, True])
def test_devices_and_pipes_are_not_replaced(tmp_path: Path, link: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for there, kind in ((pipe, "a pipe"), (Path("/dev/null"), "a device"), (tmp_path, "a folder")):
        path = there
        if link:
            path = tmp_path / f"to_{there.name}"
            path.symlink_to(there)
        before = path.lstat().st_ino
        with pytest.raises(OSError, match=kind):
            staging.write_atomically(path, lambda stream: stream.write(b"x"))
        assert path.lstat().st_ino == before


def test_the_systems_links_are_not_replaced(tmp_path: Path) -> None:
    with (tmp_path / "redirected").open("wb") as file:
        for path in (Path("/dev/fd") / str(file.fileno()), Path("/proc/self/fd") / str(file.fileno())):
            assert staging.kind_of(path) == "a device"
            with pytest.raises(OSError, match="a device"):
                staging.write_atomically(path, lambda stream: stream.write(b"x"))
    assert names(tmp_path) == ["redirected"]


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"of a model hub's cache")
    (tmp_path / "model.onnx").symlink_to("blob")
    staging.write_atomically(tmp_path / "model.onnx", lambda stream: stream.write(b"new"))
    assert (tmp_path / "blob").read_bytes() == b"of a model hub's cache"
    assert not (tmp_path / "model.onnx").is_symlink()
    assert (tmp_path / "model.onnx").read_bytes() == b"new"


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(stream: BinaryIO) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        staging.write_atomically(tmp_path / "out", fail)
    assert names(tmp_path) == []
