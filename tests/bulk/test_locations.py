# SPDX-License-Identifier: Apache-2.0
"""Stores that are no local disks: one put per file, a lease instead of a lock, and the same results."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from padfree.bulk import BulkError
from padfree.bulk.locations import Location
from padfree.bulk.lock import LOCK, only_driver
from padfree.bulk.reading.inputs import find
from pyarrow import fs

from tests.support.served_models import wait_until

BEAT_S = 0.5  # a driver that does not beat for four times as long, even because a machine is busy, loses its folder
SLOW_BEAT_S = 4.0  # drivers that come at once may be half of it apart
PATIENCE_S = 60.0


def store(folder: Path) -> Location:
    """A folder as a store, which pyarrow does not take for the local disk."""
    location = Location(fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "bucket", "store://bucket")
    location.make_folder()
    return location


def test_a_second_driver_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    location = store(tmp_path)
    with only_driver(location, BEAT_S):
        with (
            pytest.raises(BulkError, match="store://bucket: another driver is at work there"),
            only_driver(location, BEAT_S),
        ):
            pass
        assert (tmp_path / "bucket" / LOCK).exists()
    assert not (tmp_path / "bucket" / LOCK).exists()
    with only_driver(location, BEAT_S) as check:
        check()


def test_a_driver_that_was_killed_is_followed_by_another(tmp_path: Path) -> None:
    location = store(tmp_path)
    (tmp_path / "bucket" / LOCK).write_text('{"owner": "process 1 on gone", "token": "x", "beat": 7}')
    start = time.monotonic()
    with only_driver(location, BEAT_S) as check:
        check()
    assert time.monotonic() - start > 4 * BEAT_S


def refusal(check: Callable[[], None]) -> str:
    """What a driver is told about its folder; nothing if it has it."""
    try:
        check()
    except BulkError as error:
        return str(error)
    return ""


def test_a_driver_whose_folder_was_taken_over_ends(tmp_path: Path) -> None:
    location = store(tmp_path)
    with only_driver(location, BEAT_S) as check:

        def beat_and_look() -> bool:
            location.child(LOCK).write(b'{"owner": "process 2 on other", "token": "y", "beat": 1}')
            return "another driver has taken the folder over" in refusal(check)

        wait_until(beat_and_look, PATIENCE_S)
    assert "process 2" in (tmp_path / "bucket" / LOCK).read_text()  # the other driver's lock is left alone


def test_of_two_that_come_at_once_one_goes_on(tmp_path: Path) -> None:
    location, entered, refused = store(tmp_path), [], []
    barrier = threading.Barrier(2)

    def come(name: str) -> None:
        barrier.wait()
        try:
            with only_driver(location, SLOW_BEAT_S):
                entered.append(name)
                wait_until(lambda: refused, PATIENCE_S)
        except BulkError:
            refused.append(name)

    threads = [threading.Thread(target=come, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(entered), len(refused)) == (1, 1)


def test_nothing_appears_where_a_put_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = Location.of(str(tmp_path)).child("file")
    location.write(b"before")

    def full(_path: Path, _write: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("padfree.bulk.locations.write_atomically", full)
    with pytest.raises(
        BulkError, match=r"file: cannot be written \(No space left on device\); check permissions and room"
    ):
        location.write(b"after")
    assert location.read() == b"before"


def test_locations_in_each_other(tmp_path: Path) -> None:
    outer = Location.of(str(tmp_path))
    assert outer.contains(outer.child("a"))
    assert outer.contains(outer)
    assert not outer.child("a").contains(outer)
    assert not outer.child("a").contains(outer.child("ab"))
    assert not store(tmp_path).contains(outer)
    with pytest.raises(BulkError, match="nowhere://x: no filesystem for it"):
        Location.of("nowhere://x")


@pytest.mark.parametrize("of_folder", [False, True])
def test_names_that_are_no_utf8_are_one_line(tmp_path: Path, of_folder: bool) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/in\xff.jsonl")
    Path(name).write_text('{"text": "a"}\n', "utf-8")
    with pytest.raises(BulkError, match="is not UTF-8; rename it"):
        find([str(tmp_path) if of_folder else name])
