# SPDX-License-Identifier: Apache-2.0
"""The JSON files of a folder, every entry with its type, or an error that names file and entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from padfree.contract.text_files import read_json

from ..errors import BuildError


class Entries:
    """The entries of one JSON object; a missing file has none.

    Raises:
        BuildError: the file cannot be read, or holds no object.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        raw = read_json(file, BuildError, "download the model again", missing="{}")
        if not isinstance(raw, dict):
            raise BuildError(f"{file}: holds a {type(raw).__name__}, not an object; download the model again")
        self.raw: dict[str, Any] = raw

    def integer(self, name: str) -> int | None:
        """A whole number, 0 or more; None where there is none."""
        value: int | None = self._of(name, int, "a whole number, 0 or more", lambda value: value >= 0)
        return value

    def text(self, name: str) -> str | None:
        """A text; None where there is none."""
        value: str | None = self._of(name, str, "a text")
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._of(name, bool, "true or false")
        return default if value is None else bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; one alone may stand for it; empty where there is none."""
        value = self.raw.get(name)
        items = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(items, list) or any(not isinstance(item, str) for item in items):
            raise self.wrong(name, "a list of texts")
        return tuple(items)

    def object(self, name: str) -> dict[str, Any]:
        """An object; an empty one where there is none."""
        return self._of(name, dict, "an object") or {}

    def wrong(self, name: str, allowed_text: str) -> BuildError:
        """The error for an entry."""
        value_text = ascii(self.raw.get(name))[:60]
        return BuildError(
            f"{self.file}: '{name}' is {value_text}, allowed: {allowed_text}; correct the file, or download it again"
        )

    def _of(self, name: str, kind: type, allowed_text: str, fits: Any = lambda _: True) -> Any:
        value = self.raw.get(name)
        if value is not None and (type(value) is not kind or not fits(value)):
            raise self.wrong(name, allowed_text)
        return value
