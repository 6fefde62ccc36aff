# SPDX-License-Identifier: Apache-2.0
"""The fields of a request's JSON body, checked one by one."""

from __future__ import annotations

from typing import Any

import orjson
from padfree.runtime.text import Text

from ..errors import tokenizer_error, too_large_error, validation_error
from ..options import ServeOptions
from .texts import Ids

IDS_REFUSED = (
    "token ids instead of texts are not accepted: they would be those of another model's tokenizer. LangChain's "
    "OpenAIEmbeddings sends ids unless it gets check_embedding_ctx_length=False; if the ids are those of this model's "
    "tokenizer, serve with --accept-token-ids"
)


class Body:
    """A JSON object.

    Args:
        raw: the body.

    Raises:
        ApiError: it is no JSON object.
    """

    def __init__(self, raw: bytes) -> None:
        try:
            fields = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise validation_error(f"the body is not JSON ({error}); send an object") from error
        if not isinstance(fields, dict):
            raise validation_error(f"the body is {_kind(fields)}, allowed: an object")
        self._fields: dict[str, Any] = fields

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def raw(self, name: str) -> Any:
        """A field as it is; an ApiError where there is none."""
        if name not in self._fields:
            raise validation_error(f"'{name}' is missing")
        return self._fields[name]

    def text(self, name: str) -> str:
        """A text that must be there."""
        value = self.raw(name)
        if not isinstance(value, str):
            raise validation_error(f"'{name}' is {_kind(value)}, allowed: a text")
        return value

    def optional_text(self, name: str) -> str | None:
        """A text; None where there is none, or null."""
        return None if self._fields.get(name) is None else self.text(name)

    def optional_list(self, name: str) -> list[Any]:
        """A list of whatever; an empty one where there is none, or null."""
        value = self._fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise validation_error(f"'{name}' is {_kind(value)}, allowed: a list")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of some texts; the first where there is none, or null."""
        value = self._fields.get(name)
        if value is None:
            return choices[0]
        if value not in choices:
            raise validation_error(f"'{name}' is {value!r:.60}, allowed: {', '.join(choices)}")
        return str(value)

    def part(self, name: str) -> Body:
        """An object among the fields; an empty one where there is none, or null."""
        value = self._fields.get(name)
        if value is None:
            return Body.of({})
        if not isinstance(value, dict):
            raise validation_error(f"'{name}' is {_kind(value)}, allowed: an object")
        return Body.of(value)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Body:
        """A Body of fields that are parsed already."""
        body = cls.__new__(cls)
        body._fields = fields
        return body

    def truth(self, name: str, default: bool) -> bool:
        """True or false; the default where there is none, or null."""
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise validation_error(f"'{name}' is {_kind(value)}, allowed: true, false")
        return value

    def optional_count(self, name: str) -> int | None:
        """A whole number of 1 or more; None where there is none, or null."""
        value = self._fields.get(name)
        if value is None:
            return None
        if type(value) is not int or value < 1:
            raise validation_error(f"'{name}' is {value!r:.60}, allowed: 1 or more")
        return value


def read_inputs(value: Any, name: str, options: ServeOptions) -> tuple[list[str], list[Ids], bool]:
    """What /v1/embeddings and TEI's routes take: a text, texts, ids, or lists of ids.

    Returns:
        Texts, or ids instead of them, and whether it was a single one, not a list.

    Raises:
        ApiError: something else, too many or too large texts, or ids where they are not accepted.
    """
    if isinstance(value, str):
        check_texts([value], name, options)
        return [value], [], True
    if not isinstance(value, list):
        raise validation_error(f"'{name}' is {_kind(value)}, allowed: a text, or a list of texts")
    if not value:
        raise validation_error(f"'{name}' is empty, allowed: one text or more")
    if isinstance(value[0], str):
        check_texts(value, name, options)
        return value, [], False
    single = type(value[0]) is int
    lists = [value] if single else value
    check_count(len(lists), options)
    if not all(isinstance(ids, list) and ids and all(type(item) is int for item in ids) for ids in lists):
        raise validation_error(
            f"'{name}' has texts and other things in it, or empty lists; allowed: texts alone, or ids alone"
        )
    if not options.accept_token_ids:
        raise tokenizer_error(IDS_REFUSED)
    return [], lists, single


def read_texts(value: Any, name: str, options: ServeOptions) -> list[str]:
    """A list of one text or more.

    Raises:
        ApiError: something else, or too many or too large texts.
    """
    if not isinstance(value, list) or not value:
        kind = "empty" if value == [] else _kind(value)
        raise validation_error(f"'{name}' is {kind}, allowed: a list of one text or more")
    check_texts(value, name, options)
    return value


def check_count(count: int, options: ServeOptions) -> None:
    """Raises ApiError for more texts than one request may have."""
    if count > options.limits.texts:
        raise too_large_error(
            f"batch size {count} > maximum allowed batch size {options.limits.texts}; send fewer texts per request",
            "batch_size",
        )


def check_texts(texts: list[Any], name: str, options: ServeOptions) -> None:
    """Raises ApiError for what is no text, for texts that are too large, and for too many."""
    check_count(len(texts), options)
    most = options.limits.text_bytes
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise validation_error(f"'{name}' {at} is {_kind(text)}, allowed: a text")
        # A character has up to four bytes: short texts need no encoding to be measured.
        if 4 * len(text) > most and len(text.encode()) > most:
            raise too_large_error(f"'{name}' {at} has {len(text.encode())} bytes, allowed: {most}; send a shorter text")


def read_pairs(value: Any, name: str, options: ServeOptions) -> tuple[list[Text], bool]:
    """What /predict takes: a text, a pair, or a list of [text] and [text, text].

    Returns:
        Texts and pairs, and whether it was a single one, not a list.

    Raises:
        ApiError: something else, or too many or too large texts.
    """
    if isinstance(value, str):
        check_texts([value], name, options)
        return [value], True
    if not isinstance(value, list) or not value:
        raise validation_error(f"'{name}' is {_kind(value)}, allowed: a text, a pair [text, text], or a list of these")
    if isinstance(value[0], str):
        return [_pair(value, name, options)], True
    check_count(len(value), options)
    return [_pair(item, f"{name} {at}", options) for at, item in enumerate(value)], False


def _pair(item: Any, name: str, options: ServeOptions) -> Text:
    if not isinstance(item, list) or len(item) not in (1, 2):
        raise validation_error(f"'{name}' is no text and no pair of texts, allowed: [text] or [text, text]")
    check_texts(item, name, options)
    return item[0] if len(item) == 1 else (item[0], item[1])


def _kind(value: Any) -> str:
    kinds = {str: "a text", list: "a list", dict: "an object", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")
