# SPDX-License-Identifier: Apache-2.0
"""One driver per output folder.

On local disks the kernel keeps the lock and drops it with the process, however that ends; a driver that ends by
itself removes its file. Object stores know no locks: there a driver writes a small object anew every few seconds, and
one that finds such an object watches whether it changes. No clocks are compared. Two drivers that both passed, because
the store or a network stood still, would do the same work twice and write the same bits: the manifest fixes what is in
every file.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyarrow.fs import FileType

from .errors import BulkError
from .locations import Location

LOCK = "_lock"
BEAT_S = 5.0
"""How often a driver writes its object anew."""
BEATS = 4
"""Another one that sees so many beats pass without a change takes the folder over."""

Check = Callable[[], None]


@contextmanager
def only_driver(output: Location, beat_s: float = BEAT_S) -> Iterator[Check]:
    """Holds the folder until the context ends.

    Args:
        output: the folder, which is there.
        beat_s: seconds between two beats on an object store.

    Yields:
        A function that raises BulkError when another driver has taken the folder over.

    Raises:
        BulkError: another driver has it.
    """
    with _flock(output) if output.is_local else _lease(output.child(LOCK), beat_s) as check:
        yield check


@contextmanager
def _flock(output: Location) -> Iterator[Check]:
    path = Path(output.path) / LOCK
    handle = _lock_file(path, output.shown_path)
    try:
        _sign(handle, path, output.shown_path)
        yield lambda: None
    finally:
        path.unlink(missing_ok=True)  # while it is held: a driver that has opened it meanwhile finds that it is gone
        os.close(handle)


def _lock_file(path: Path, shown_path: str) -> int:
    """The file, opened and locked.

    Raises:
        BulkError: another driver has it, or it cannot be made.
    """
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _no_lock(shown_path, path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError as error:
            owner = os.read(handle, 4096).decode(errors="replace")
            os.close(handle)
            raise _refusal(shown_path, owner) from error
        except FileNotFoundError:
            pass  # the driver before has just ended, and its file with it
        os.close(handle)


def _sign(handle: int, path: Path, shown_path: str) -> None:
    """Writes its holder into the lock.

    Raises:
        BulkError: there is no room.
    """
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, _owner().encode(), 0)
    except OSError as error:
        raise _no_lock(shown_path, path, error) from error


def _no_lock(shown_path: str, path: Path, error: OSError) -> BulkError:
    return BulkError(f"{shown_path}: the lock {path} cannot be made ({error.strerror}); check permissions and room")


@contextmanager
def _lease(lock: Location, beat_s: float) -> Iterator[Check]:
    content = _content(lock)
    until = time.monotonic() + BEATS * beat_s
    while content is not None and time.monotonic() < until:
        time.sleep(beat_s / 2)
        if _content(lock) != content:
            raise _refusal(lock.shown_path.rsplit("/", 1)[0], content.decode(errors="replace"))
    lease = _Lease(lock, beat_s)
    lease.beat()
    time.sleep(beat_s / 2)  # a driver that came at the same time has written by now, and the later one keeps it
    lease.look()
    lease.check()
    thread = threading.Thread(target=lease.keep, name="padfree-lease", daemon=True)
    thread.start()
    try:
        yield lease.check
    finally:
        lease.ended.set()
        thread.join()
        if not lease.lost:
            lock.filesystem.delete_file(lock.path)


class _Lease:
    def __init__(self, lock: Location, beat_s: float) -> None:
        self._lock, self._beat_s = lock, beat_s
        self._token = uuid.uuid4().hex
        self._beats = 0
        self.lost = False
        self.ended = threading.Event()

    def beat(self) -> None:
        """Writes the object anew."""
        self._beats += 1
        self._lock.write(json.dumps({"owner": _owner(), "token": self._token, "beat": self._beats}).encode())

    def look(self) -> None:
        """Sees whether the folder is still this driver's."""
        content = _content(self._lock)
        self.lost = self.lost or content is None or self._token not in content.decode(errors="replace")

    def check(self) -> None:
        """Raises BulkError when it was not at the last look."""
        if self.lost:
            raise BulkError(
                f"{self._lock.shown_path}: another driver has taken the folder over; let that one finish, or end it "
                "and run the command again"
            )

    def keep(self) -> None:
        """Looks and beats until the end, or until the folder is lost."""
        while not self.lost and not self.ended.wait(self._beat_s):
            with suppress(BulkError):  # a store that does not answer now may do so at the next beat
                self.look()
                if not self.lost:
                    self.beat()


def _content(lock: Location) -> bytes | None:
    return lock.read() if lock.info().type == FileType.File else None


def _owner() -> str:
    return f"process {os.getpid()} on {platform.node()}"


def _refusal(output: str, owner: str) -> BulkError:
    return BulkError(
        f"{output}: another driver is at work there ({owner.strip() or 'unknown'}); wait for it, or pass another "
        "output folder"
    )
