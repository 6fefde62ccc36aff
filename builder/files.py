# SPDX-License-Identifier: Apache-2.0
"""Writes files whole or not at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from padfree.contract.staging import stage, write_atomically

from .errors import BuildError

_log = logging.getLogger(__name__)


def write_files(files: Sequence[tuple[Path, bytes | memoryview]], *, sync: bool = True) -> None:
    """Writes all files beside their destinations first and moves them into place only when every one is complete.

    With `sync`, that holds after a power failure, too, but large files take twice as long: leave it out where they can
    be made again and their readers compare a digest.

    Raises:
        BuildError: the folder is missing, not writable, or the disk is full; nothing has changed then.
    """
    staged_files: list[tuple[Path, Path]] = []
    try:
        for path, content in files:
            staged_files.append((stage(path, partial(_write_all, content), sync=sync), path))
        for temporary, path in staged_files:
            temporary.replace(path)
    except OSError as error:
        raise _readable(
            staged_files[-1][1] if len(staged_files) == len(files) else files[len(staged_files)][0], error
        ) from error
    finally:
        for temporary, _ in staged_files:
            temporary.unlink(missing_ok=True)


@contextmanager
def named_as(names: Mapping[Path, Path]) -> Iterator[None]:
    """Errors inside call files by what the user knows: a temporary file's name tells nobody anything."""
    try:
        yield
    except Exception as error:
        if error.args and isinstance(error.args[0], str):
            text = error.args[0]
            for file, name in names.items():
                text = text.replace(str(file), str(name))
            error.args = (text, *error.args[1:])
        raise


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """An object as the text of a JSON file that people may read."""
    return json.dumps(value, indent=2).encode() + b"\n"


def keep_cache(path: Path, content: bytes, what: str) -> None:
    """Writes a file that only saves time later: a folder that cannot be written costs a warning that names `what`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_files([(path, content)])
    except (BuildError, OSError) as error:
        _log.warning("%s not kept: %s", what, error)


def write_with(path: Path, writer: Callable[[IO[bytes]], object]) -> None:
    """Lets `writer` fill a file beside `path` and moves it into place when it is complete.

    Raises:
        BuildError: as write_files.
    """
    try:
        write_atomically(path, writer)
    except OSError as error:
        raise _readable(path, error) from error


def _write_all(content: bytes | memoryview, file: IO[bytes]) -> None:
    file.write(content)


def _readable(path: Path, error: OSError) -> BuildError:
    reason = error.strerror or str(error)
    return BuildError(
        f"{path}: cannot be written ({reason}); nothing was changed: check that {path.parent} exists, is writable and "
        "has room, or choose another path"
    )
