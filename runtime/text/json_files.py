# SPDX-License-Identifier: Apache-2.0
"""Files of a tokenizer's folder: their bytes and their objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from padfree.contract.file_kinds import refuse_link
from padfree.contract.os_errors import not_readable
from padfree.contract.text_files import read_json

from ..errors import SessionError

WHAT_TO_GIVE = "the file that is wanted is the tokenizer.json that was saved with the model"


def read_bytes(path: Path) -> bytes:
    """The bytes of a tokenizer.json.

    Raises:
        SessionError: there is no such file, it cannot be read, or is a link of git lfs.
    """
    if not path.is_file():
        raise SessionError(f"{path}: no such tokenizer; {WHAT_TO_GIVE}: pass it (--tokenizer)")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SessionError(f"{path}: {not_readable(error, WHAT_TO_GIVE)}") from error
    refuse_link(content, path, SessionError)
    return content


def saved_object(content: bytes, path: Path) -> dict[str, Any]:
    """A tokenizer.json as an object; `path` is named in messages.

    Raises:
        SessionError: it is not JSON, or holds something else.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SessionError(f"{path}: not a tokenizer file ({error}); {WHAT_TO_GIVE}") from error
    if not isinstance(value, dict):
        raise SessionError(f"{path}: not a tokenizer file, it holds a {type(value).__name__}; {WHAT_TO_GIVE}")
    return value


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file's object; an empty one where there is no such file.

    Raises:
        SessionError: it cannot be read, or holds something else.
    """
    if not file.is_file():
        return {}
    value = read_json(file, SessionError, "download it again")
    if not isinstance(value, dict):
        raise SessionError(f"{file}: holds a {type(value).__name__}, not an object; download it again")
    return value
