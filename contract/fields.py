# SPDX-License-Identifier: Apache-2.0
"""Reads JSON objects whose writers are not known: every value with its type and range, or an error that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .errors import ContractError

T = TypeVar("T")

MOST_INT32 = 2**31 - 1
MOST_INT64 = 2**63 - 1
MOST_NAME_LETTERS = 4096
_SHOWN_LETTERS = 60


def decode(text: str) -> Any:
    """The object in a JSON text.

    Raises:
        ValueError: it is not JSON, is nested too deeply to make sense, or has numbers of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


class Fields:
    """The entries of a JSON object.

    Args:
        raw: the decoded object.
        source: what it was read from, for messages.
        path: where in the source it is, such as "engine.profile"; "" at the top.
        error: what is raised for entries that are missing or wrong.

    Raises:
        error: it is no object.
    """

    def __init__(self, raw: Any, source: str, path: str = "", error: type[Exception] = ContractError) -> None:
        self._source, self._path, self._error = source, path, error
        if not isinstance(raw, dict):
            raise self._wrong(path, raw, "an object")
        self._raw: dict[str, Any] = raw

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def names(self) -> list[str]:
        """The names of all entries."""
        return list(self._raw)

    def text(self, name: str, allowed_text: str | re.Pattern[str] | tuple[str, ...] = "") -> str:
        """A text of one line that a terminal shows as it is; `allowed_text` are the texts, or their pattern."""
        value = self._get(name)
        if isinstance(allowed_text, tuple):
            if value not in allowed_text or not isinstance(value, str):
                raise self._wrong(self._at(name), value, ", ".join(allowed_text))
            return value
        if not is_name(value):
            raise self._wrong(self._at(name), value, "1 to 4096 printable characters")
        if isinstance(allowed_text, re.Pattern) and not allowed_text.fullmatch(value):
            raise self._wrong(self._at(name), value, f"what {allowed_text.pattern} matches")
        return str(value)

    def string(self, name: str) -> str:
        """Any text; whoever shows it has to escape it."""
        value = self._get(name)
        if not isinstance(value, str):
            raise self._wrong(self._at(name), value, "a text")
        return value

    def optional_string(self, name: str) -> str | None:
        """Any text; None where there is none, or null."""
        return None if self._raw.get(name) is None else self.string(name)

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        for at, value in self._list(name):
            if not isinstance(value, str):
                raise self._wrong(at, value, "a text")
        return tuple(value for _, value in self._list(name))

    def number(self, name: str) -> float:
        """A number, which is finite."""
        value = self._get(name)
        if type(value) not in (int, float) or not -MOST_INT64 <= value <= MOST_INT64:
            raise self._wrong(self._at(name), value, "a finite number")
        return float(value)

    def integer(self, name: str, least: int = 0, most: int = MOST_INT32) -> int:
        """A whole number in a range."""
        return self._integer(self._at(name), self._get(name), least, most)

    def optional_integer(self, name: str, least: int = 0, most: int = MOST_INT32) -> int | None:
        """A whole number in a range; None where there is none, or null."""
        return None if self._raw.get(name) is None else self.integer(name, least, most)

    def boolean(self, name: str) -> bool:
        """True or false."""
        value = self._get(name)
        if not isinstance(value, bool):
            raise self._wrong(self._at(name), value, "true or false")
        return value

    def integers(self, name: str, least: int = 0, most: int = MOST_INT64) -> tuple[int, ...]:
        """A list of whole numbers."""
        return tuple(self._integer(at, value, least, most) for at, value in self._list(name))

    def optional_integers(self, name: str) -> tuple[int | None, ...] | None:
        """A list of whole numbers and nulls; None where there is none, or null."""
        if self._raw.get(name) is None:
            return None
        return tuple(
            None if value is None else self._integer(at, value, 0, MOST_INT64) for at, value in self._list(name)
        )

    def optional_sizes(self, name: str) -> tuple[int | str, ...] | None:
        """A list of whole numbers and printable texts; None where there is none, or null."""
        if self._raw.get(name) is None:
            return None
        return tuple(
            value if is_name(value) else self._integer(at, value, 0, MOST_INT64) for at, value in self._list(name)
        )

    def object(self, name: str) -> Fields:
        """An object in this one."""
        return self._inner(self._get(name), self._at(name))

    def optional_object(self, name: str) -> Fields:
        """An object in this one; an empty one where there is none, or null."""
        raw = self._raw.get(name)
        return self._inner({} if raw is None else raw, self._at(name))

    def objects(self, name: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
        """A list of objects, as `read` takes each."""
        return tuple(read(self._inner(raw, at)) for at, raw in self._list(name))

    def counts(self, name: str) -> dict[str, int]:
        """An object whose names are printable and whose values are whole numbers; an empty one where there is none."""
        inside = self.optional_object(name)
        for item in inside.names():
            if not is_name(item):
                raise self._wrong(f"a name in {self._at(name)}", item, "1 to 4096 printable characters")
        return {item: inside.integer(item) for item in inside.names()}

    def fail(self, name: str, allowed_text: str) -> Exception:
        """The error for an entry that does not fit the others."""
        return self._wrong(self._at(name), self._raw.get(name), allowed_text)

    def _inner(self, raw: Any, path: str) -> Fields:
        return Fields(raw, self._source, path, self._error)

    def _get(self, name: str) -> Any:
        if name not in self._raw:
            raise self._error(f"{self._source}: damaged padfree metadata: no {self._at(name)}; make the file again")
        return self._raw[name]

    def _list(self, name: str) -> Iterator[tuple[str, Any]]:
        values = self._get(name)
        if not isinstance(values, list):
            raise self._wrong(self._at(name), values, "a list")
        return ((f"{self._at(name)}[{number}]", value) for number, value in enumerate(values))

    def _integer(self, at: str, value: Any, least: int, most: int) -> int:
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(at, value, f"whole numbers from {least} to {most}")
        return value

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _wrong(self, at: str, value: Any, allowed_text: str) -> Exception:
        value_text = ascii(value)
        if len(value_text) > _SHOWN_LETTERS:
            value_text = f"{value_text[:_SHOWN_LETTERS]}..."
        return self._error(
            f"{self._source}: damaged padfree metadata: {at} is {value_text}, allowed: {allowed_text}; make the file "
            "again"
        )


def is_name(value: Any) -> bool:
    """Whether it is a text that may be a name: one line, without control characters."""
    return isinstance(value, str) and 0 < len(value) <= MOST_NAME_LETTERS and value.isprintable()
