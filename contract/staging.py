# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all: each is written beside its path, under a name of its own, and moved there."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .file_kinds import kind_of_mode

SUFFIX = ".partial"
_KEPT_LETTERS = 40  # of the destination's name, whose file system may take no longer one
_TOKEN_BYTES = 8
_PARTIAL = re.compile(rf"\.(.+)\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}{re.escape(SUFFIX)}", re.DOTALL)


def kind_of(path: Path) -> str:
    """What is at `path` that no file may replace, such as "a device"; "" where nothing is.

    Links are followed: a link to a device is one. Raises OSError where that fails, as for links in a circle.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return ""
    folder = Path(os.path.realpath(path.parent))
    if path.is_symlink() and (folder == Path("/dev") or folder.is_relative_to("/proc")):
        return "a device"  # /dev/stdout and its like lead to files where a shell redirects them, and are the system's
    return kind_of_mode(mode)


def partial_path(path: Path) -> Path:
    """A name beside `path` that is hidden, says what it is for, and cannot be guessed."""
    return path.with_name(f".{path.name[:_KEPT_LETTERS]}.{secrets.token_hex(_TOKEN_BYTES)}{SUFFIX}")


def staged_for(path: Path) -> str:
    """The beginning of the name that something was staged for, as `partial_path` calls it; "" for other files."""
    match = _PARTIAL.fullmatch(path.name)
    return match[1] if match else ""


def stage(path: Path, write: Callable[[BinaryIO], object], *, sync: bool = True) -> Path:
    """Lets `write` fill a new file beside `path`, which the caller then moves into place; returns it.

    The file has the permissions that the user's umask leaves. It is removed again where anything fails.
    Raises OSError; also where a folder, a device or a pipe stands at `path`.
    """
    kind = kind_of(path)
    if kind:
        raise OSError(errno.EINVAL, f"it is {kind}, no file")
    stage_path = partial_path(path)
    # Always a new file: nobody who may write to the folder can redirect this elsewhere with a link.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(stage_path, flags, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
    except BaseException:
        stage_path.unlink(missing_ok=True)
        raise
    return stage_path


def write_atomically(file: Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` with a stream; the file appears, or is replaced, only when all is on the disk.

    Raises OSError, as stage.
    """
    stage_path = stage(file, write)
    try:
        stage_path.replace(file)
    finally:
        stage_path.unlink(missing_ok=True)
