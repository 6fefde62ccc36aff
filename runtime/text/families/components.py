# SPDX-License-Identifier: Apache-2.0
"""What a family of tokenizer classes is, and what it builds a tokenizer from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORD_PIECE, BPE, UNIGRAM = "WordPiece", "BPE", "Unigram"
"""Kinds of vocabularies."""
SPACE = "\u2581"
"""What SentencePiece writes for a space."""
FIRST, SECOND = "$A", "$B"
ALL, NAMELESS = "all", "unnamed"
"""Which special tokens keep no spaces beside them, whatever is said about them: all, or those that no setting names."""
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The settings with the usual special tokens, in the order in which they are added."""


class Settings:
    """Settings of a tokenizer, with the defaults of its class; every one is asked for by its name.

    Args:
        values: tokenizer_config.json.
        defaults: special tokens of the class.
        constants: settings with a fixed value, whatever `values` says.
        wrong: makes the error for an entry of a kind that is not allowed, from its name and what is allowed.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any],
        constants: Mapping[str, bool],
        wrong: Callable[[str, str], Exception],
    ) -> None:
        self._values, self._defaults, self._constants, self._wrong = values, defaults, constants, wrong

    @property
    def pads_right(self) -> bool:
        """Whether padding stands on the right, where it does not say otherwise."""
        return bool(self._values.get("padding_side", "right") == "right")

    def truth(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._constants.get(name, self._values.get(name))
        if value is not None and type(value) is not bool:
            raise self._wrong(name, "true or false")
        return default if value is None else bool(value)

    def optional_truth(self, name: str) -> bool | None:
        """True, false or null."""
        return None if self._values.get(name) is None else self.truth(name, False)

    def text(self, name: str, default: str) -> str:
        """A word, as of a language."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a word")
        return value or default

    def count(self, name: str, default: int) -> int:
        """A number of tokens, 0 or more."""
        value = self._values.get(name)
        if value is not None and (type(value) is not int or not 0 <= value <= 1 << 16):
            raise self._wrong(name, f"a number from 0 to {1 << 16}")
        return default if value is None else value

    def ends(self, begin: str = "cls_token", end: str = "sep_token") -> tuple[str, str]:
        """The tokens at the beginning and at the end of texts, which have these names."""
        return self.token(begin), self.token(end)

    def token(self, name: str) -> str:
        """The content of a special token; those that are one class's alone have other contents only as objects."""
        setting = self._values.get(name)
        token_setting = (
            self._defaults.get(name) if not setting or (name not in NAMES and isinstance(setting, str)) else setting
        )
        content = token_setting.get("content") if isinstance(token_setting, dict) else token_setting
        if not isinstance(content, str):
            raise self._wrong(name, "a token")
        return content


class TokenizerJson:
    """What a tokenizer.json holds.

    Args:
        content: its object.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.model: Mapping[str, Any] = content.get("model") or {}

    @property
    def kind(self) -> str:
        """The kind of vocabulary; files of older versions do not name it."""
        type_name = self.model.get("type")
        if type_name is not None:
            return str(type_name)
        by_list = isinstance(self.model.get("vocab"), list)
        return UNIGRAM if by_list else BPE if "merges" in self.model else WORD_PIECE

    @cached_property
    def pieces(self) -> Sequence[str]:
        """The vocabulary's, in its order: it is an object, or a list of pieces and weights."""
        vocabulary = self.model.get("vocab") or ()
        return list(vocabulary) if isinstance(vocabulary, dict) else [str(piece) for piece, _ in vocabulary]

    @cached_property
    def known_tokens(self) -> frozenset[str]:
        """The vocabulary and the added tokens."""
        added_tokens = (str(token.get("content")) for token in self.content.get("added_tokens", ()))
        return frozenset(self.pieces) | frozenset(added_tokens)

    def charsmap(self) -> list[normalizers.Normalizer]:
        """The table of characters that tokenizers of SentencePiece have; nothing where there is none."""
        outer = self.content.get("normalizer") or {}
        precompiled = next(
            (step for step in outer.get("normalizers", [outer]) if step.get("type") == "Precompiled"), None
        )
        if precompiled is None:
            return []
        plain = json.loads(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str())
        return [Tokenizer.from_str(json.dumps({**plain, "normalizer": precompiled})).normalizer]


@dataclass(frozen=True)
class Frame:
    """What stands around texts.

    Attributes:
        single: items around a text: "$A", and contents of special tokens; ":1" after one gives its type.
        pair: around two of them: "$A" and "$B".
        unknown: stands for tokens that the vocabulary does not have; None: it has every token.
        numbers: fixed ids of tokens, whatever the vocabulary says.
    """

    single: tuple[str, ...]
    pair: tuple[str, ...]
    unknown: str | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)

    def processor(self, tokenizer: Tokenizer) -> processors.PostProcessor:
        """The frame, with ids of a tokenizer."""
        texts = (FIRST, SECOND)
        names = dict.fromkeys(_content(item) for item in (*self.single, *self.pair) if _content(item) not in texts)
        unknown = None if self.unknown is None else tokenizer.token_to_id(self.unknown)
        numbers = ((name, self.numbers.get(name, tokenizer.token_to_id(name))) for name in names)
        tokens = [(name, unknown if number is None else number) for name, number in numbers]
        return processors.TemplateProcessing(single=list(self.single), pair=list(self.pair), special_tokens=tokens)


def enclose(begin: str, end: str, second: str = f"{SECOND}:0") -> Frame:
    """Texts between these tokens, the second after another `end`; `second` is "$B", perhaps with its type."""
    return Frame((begin, FIRST, end), (begin, FIRST, end, end, second, end))


NO_FRAME = Frame((FIRST,), (FIRST, f"{SECOND}:1"))
"""Nothing around texts; second texts have types of their own."""


def _content(item: str) -> str:
    head, mark, tail = item.rpartition(":")
    return head if mark and tail.isdecimal() else item


@dataclass(frozen=True)
class Components:
    """What a tokenizer is built from.

    Attributes:
        model: as tokenizer.json would have it.
        normalizer: None: texts stay as they are.
        pre_tokenizer: None: texts are not cut.
        frame: what stands around texts; None: what tokenizer.json says.
    """

    model: Mapping[str, Any]
    normalizer: normalizers.Normalizer | None
    pre_tokenizer: pre_tokenizers.PreTokenizer | None
    frame: Frame | None = None


@dataclass(frozen=True)
class Family:
    """A way to build a tokenizer, that of one class or of several.

    Attributes:
        vocabulary: the kind that it is built from.
        build: makes its components.
        around: settings with tokens that the vocabulary must have.
        keeps_frame: what tokenizer.json has around texts is kept, where it has something.
        extra: special tokens without a name, of those that are listed.
        plain: which special tokens keep no spaces beside them: ALL, NAMELESS, or "" for none.
    """

    vocabulary: str
    build: Callable[[Settings, TokenizerJson], Components]
    around: Sequence[str] = field(default=())
    keeps_frame: bool = False
    extra: Callable[[Settings, Sequence[Any]], Sequence[Any]] = lambda _, tokens: tokens
    plain: str = ""

    def fits(self, settings: Settings, tokenizer_json: TokenizerJson) -> bool:
        """Whether tokenizer.json holds what the class builds its tokenizer from."""
        if any(settings.token(name) not in tokenizer_json.known_tokens for name in self.around):
            return False
        if self.vocabulary == WORD_PIECE:
            vocabulary = tokenizer_json.model.get("vocab")
            return (
                isinstance(vocabulary, dict)
                and "merges" not in tokenizer_json.model
                and settings.token("unk_token") in vocabulary
            )
        return tokenizer_json.kind == self.vocabulary


def bpe(tokenizer_json: TokenizerJson, **settings: Any) -> dict[str, Any]:
    """A model of merges, of which nothing but vocabulary and merges is tokenizer.json's."""
    usual = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    flags = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    model_parts = {"vocab": tokenizer_json.model["vocab"], "merges": tokenizer_json.model["merges"]}
    return {"type": BPE, **usual, **flags, **settings, **model_parts}


def unigram(tokenizer_json: TokenizerJson, unknown: int | None) -> dict[str, Any]:
    """A model of weights, with the index of the piece that unknown characters get."""
    return {"type": UNIGRAM, "unk_id": unknown, "byte_fallback": False, "vocab": tokenizer_json.model["vocab"]}
