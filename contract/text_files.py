# SPDX-License-Identifier: Apache-2.0
"""Small files as texts and as JSON, or an error that says what helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .fields import decode
from .file_kinds import refuse_link
from .os_errors import not_readable


def read_text(
    path: Path,
    error: Callable[[str], Exception],
    advice: str,
    *,
    encoding: str = "utf-8",
    newline: str | None = None,
    missing: str | None = None,
) -> str:
    """What a file holds.

    Args:
        path: the file.
        error: makes what is raised where it cannot be read.
        advice: what helps, unless the system's reason has an advice of its own.
        encoding: the file's.
        newline: as for open(): None makes line feeds of all line ends, "" keeps them as they are.
        missing: what stands for a file that does not exist; None: such a file cannot be read.
    """
    try:
        with path.open(encoding=encoding, newline=newline) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as reason:
        if missing is not None and isinstance(reason, FileNotFoundError):
            return missing
        raise error(f"{path}: {not_readable(reason, advice)}") from reason


def read_json(path: Path, error: Callable[[str], Exception], advice: str, *, missing: str | None = None) -> Any:
    """What a JSON file holds; arguments as of read_text."""
    text = read_text(path, error, advice, missing=missing)
    try:
        return decode(text)
    except ValueError as reason:
        refuse_link(text.encode(), path, error)
        raise error(f"{path}: not JSON ({reason}); {advice}") from reason
