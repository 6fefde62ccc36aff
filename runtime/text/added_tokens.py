# SPDX-License-Identifier: Apache-2.0
"""Tokens that settings add to a vocabulary, in the order in which transformers adds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer

from .families.components import ALL, NAMES

EXTRA = ("extra_special_tokens", "additional_special_tokens")
"""Settings with special tokens that have no name, of newer and older versions."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


class AddedTokens:
    """The tokens of one folder.

    Args:
        settings: tokenizer_config.json.
        tokenizer_json: tokenizer.json.
        file: added_tokens.json.
        defaults: special tokens of the tokenizer's class.
        extra: makes the class's list of further special tokens from that of the settings.
        adds: the class adds its list, whatever the settings list.
        plain: which special tokens keep no spaces beside them, see `Family`.
        wrong: makes the error for an entry of a kind that is not allowed, from its name and what is allowed.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        tokenizer_json: Mapping[str, Any],
        file: Mapping[str, Any],
        *,
        defaults: Mapping[str, Any],
        extra: Callable[[Sequence[Any]], Sequence[Any]],
        adds: bool,
        plain: str,
        wrong: Callable[[str, str], Exception],
    ) -> None:
        self._settings, self._tokenizer_json, self._file, self._wrong = settings, tokenizer_json, file, wrong
        self._defaults, self._extra, self._adds, self._plain = defaults, extra, adds, plain

    def add_to(self, tokenizer: Tokenizer, rows: int | None) -> None:
        """Adds them, except those beyond a table of so many rows; None: the table has a row for each."""
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        known_tokens = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
        for token in self._tokens():
            new = tokenizer.token_to_id(token.content) is None
            if repr(token) not in known_tokens and not (new and rows is not None and size >= rows):
                tokenizer.add_tokens([token])
                size += new
        for token in self._added_again():
            if tokenizer.token_to_id(token.content) is not None:
                tokenizer.add_tokens([token])

    def _added_again(self) -> Iterator[AddedToken]:
        """Special tokens whose spaces beside them are not what other files say."""
        contents = {self._settings.get(name) for name in NAMES if isinstance(self._settings.get(name), str)}
        for value in self._special() if self._plain else ():
            token = _token(value)
            if token is not None and self._plain == ALL:
                yield AddedToken(token.content, special=True)
            elif token is not None and token.content not in contents:
                yield token

    def _tokens(self) -> Iterator[AddedToken]:
        by_id = sorted(dict(self._decoder()).items())
        yield from (token for _, token in by_id)
        contents, pairs = {token.content for _, token in by_id}, set[tuple[str, bool]]()
        for value in self._special():
            token, plain = _token(value), isinstance(value, str)  # one that comes as either is added twice
            if token is not None and token.content not in contents and (token.content, plain) not in pairs:
                pairs.add((token.content, plain))
                yield AddedToken(token.content, **{name: getattr(token, name) for name in _FLAGS}, special=True)

    def _special(self) -> Iterator[Any]:
        """Special tokens that settings name, or the class does."""
        yield from self._usual()
        extra = self._settings.get(EXTRA[0])
        own = [value for name, value in self._settings.items() if name.endswith("_token") and name not in NAMES]
        own += list(extra.values()) if isinstance(extra, dict) else []
        own += [value for name, value in self._defaults.items() if name not in NAMES]
        yield from (value for value in own if isinstance(value, (str, dict)))
        yield from self._special_tokens()

    def _usual(self) -> Iterator[Any]:
        for name in NAMES:
            usual = self._defaults.get(name)
            value = self._settings.get(name, usual)
            yield {**usual, "content": value} if isinstance(usual, dict) and isinstance(value, str) else value

    def _special_tokens(self) -> Sequence[Any]:
        """Special tokens without a name."""
        first, second = (self._settings.get(name) for name in EXTRA)
        if (isinstance(first, dict) and first) or self._adds:
            return self._extra(second or ())
        tokens = first if isinstance(first, list) and first else second
        return self._extra(()) if tokens is None else tokens

    def _decoder(self) -> Iterator[tuple[int, AddedToken]]:
        """Tokens by their ids: those of tokenizer_config.json, or else those of other files."""
        decoder = self._settings.get("added_tokens_decoder")
        if decoder is not None:
            if not isinstance(decoder, dict) or not all(str(at).isdecimal() for at in decoder):
                raise self._wrong("added_tokens_decoder", "an object of ids and tokens")
            for at, value in decoder.items():
                token = _token(value, special=False)
                if token is None:
                    raise self._wrong("added_tokens_decoder", "an object of ids and tokens")
                yield int(at), token
            return
        extra = self._settings.get(EXTRA[0])  # an object: then older settings' list makes no token of the file special
        tokens = () if isinstance(extra, dict) and extra else self._special_tokens()
        special = {token.content for value in (*self._usual(), *tokens) if (token := _token(value))}
        for content, at in self._file.items():
            token = _token({"content": content, "normalized": content not in special}, special=content in special)
            if token is not None and isinstance(at, int):
                yield at, token
        for item in self._tokenizer_json.get("added_tokens", ()):
            token = _token(item, special=False)
            if token is not None:
                yield int(item["id"]), token


def _token(value: Any, *, special: bool = True) -> AddedToken | None:
    """A token as JSON files write it."""
    if isinstance(value, str) and value:
        return AddedToken(value, special=special)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str) or not value["content"]:
        return None
    flags = {name: value[name] for name in (*_FLAGS, "special") if isinstance(value.get(name), bool)}
    return AddedToken(value["content"], **{"special": special, **flags})
