# SPDX-License-Identifier: Apache-2.0
"""Files are written completely or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from padfree.builder import BuildError
from padfree.builder.files import write_files, write_with


def test_several_files_appear_together(tmp_path: Path) -> None:
    write_files([(tmp_path / "a", b"1"), (tmp_path / "b", b"2")])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.plan").write_bytes(b"old")
    synced = []

    def full_at_the_second(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full_at_the_second)
    with pytest.raises(BuildError, match=r"model\.plan\.json: cannot be written \(No space left on device\)"):
        write_files([(tmp_path / "model.plan", b"new"), (tmp_path / "model.plan.json", b"{}")])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"model.plan": b"old"}


def test_a_real_full_disk(tmp_path: Path) -> None:
    def fill(_file: object) -> None:
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(BuildError, match="No space left on device"):
        write_with(tmp_path / "out.npz", fill)
    assert list(tmp_path.iterdir()) == []


def test_other_errors_leave_no_file_either(tmp_path: Path) -> None:
    def fail(_file: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_with(tmp_path / "out.npz", fail)
    assert list(tmp_path.iterdir()) == []
