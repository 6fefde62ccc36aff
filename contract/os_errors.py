# SPDX-License-Identifier: Apache-2.0
"""What the system says about files that cannot be read or written, with what helps against it."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ADVICE: Mapping[int, str] = {
    errno.EACCES: "check its permissions, and those of its folders",
    errno.EPERM: "check its permissions, and those of its folders",
    errno.ENOSPC: "free space there, or choose another folder",
    errno.EDQUOT: "free space there, or choose another folder",
    errno.EROFS: "choose a folder that is not mounted read-only",
    errno.ENOENT: "check its path",
    errno.ENOTDIR: "check its path",
    errno.EISDIR: "name a file in it",
    errno.ENAMETOOLONG: "take a shorter name",
    errno.ELOOP: "its links lead in a circle: name a file",
    errno.EMFILE: "close files, or raise the limit (ulimit -n)",
    errno.ENFILE: "close files, or raise the limit (ulimit -n)",
    errno.ENOMEM: "free memory",
    errno.EIO: "check the disk, or the network that it is reached by",
    errno.ESTALE: "check the disk, or the network that it is reached by",
}

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OWN = "padfree-"
"""What the names of padfree's folders for temporary files begin with."""


def not_readable(error: Exception, otherwise: str) -> str:
    """Says that something cannot be read, why, and what helps: `otherwise`, unless the system's reason has its own."""
    if not isinstance(error, OSError):
        return f"cannot be read ({error}); {otherwise}"
    return f"cannot be read ({error.strerror or error}); {ADVICE.get(error.errno or 0, otherwise)}"


def room_advice(file: str | Path) -> str:
    """What helps where a file cannot be written: the user chose its folder, unless it is one for temporary files."""
    return _temporary_room(file) or f"free space in '{Path(file).parent}' or choose another folder"


def _temporary_room(file: str | Path) -> str:
    """What helps where one of padfree's own temporary files cannot be written; "" for other files."""
    temporary = tempfile.tempdir  # known once a temporary folder has been made
    folders = Path(file).parents
    if temporary and any(each.parent == Path(temporary) and each.name.startswith(_OWN) for each in folders):
        return f"free space in '{temporary}', where temporary files go, or set TMPDIR to another folder"
    return ""


@contextmanager
def errors_of(file: Path) -> Iterator[None]:
    """The system's errors inside name this file if they name none, as those of writing to an open one do."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def describe_os_error(error: OSError) -> str:
    """An error of the system's as one line: the file, what is wrong, and what helps; "" where it has no advice."""
    advice = ADVICE.get(error.errno or 0)
    if advice is None:
        return ""
    if error.errno in _FULL and isinstance(error.filename, str):
        advice = _temporary_room(error.filename) or advice
    name = f"{error.filename}: " if isinstance(error.filename, str) else ""
    return f"{name}{error.strerror}; {advice}"
