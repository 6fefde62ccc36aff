# SPDX-License-Identifier: Apache-2.0
"""BERT's tokens of plain texts, looked up word by word: what `tokenizers` gives, many times as fast.

BERT's tokenizer cuts a text into words and marks first, and each of these into pieces of its vocabulary, whatever
stands beside it. So a word's pieces need to be found once. Texts of ASCII alone are cut here; others, and tokenizers
that work otherwise, are left to the library.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_WORDS = 1 << 18
"""Words whose pieces are kept; then all are forgotten, and found again."""
LONGEST_WORD = 64
"""Letters of words that are kept."""

_WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_UNUSUAL = re.compile(r"[^\t\n\r -~]")  # control characters, which the normaliser takes away
_SAMPLES = ("", "a", "A cat's 3.5 mats!", "  un-  known?\tword\nqzxj ", "[CLS] x", "ALL [x] <y> #z@w.com ``it''")


class WordPieces:
    """The pieces of words, found once and kept. Threads may share one.

    Args:
        tokenizer: one that `of` has looked at.
        settings: its JSON.
        front, back: ids around the pieces of a text.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Any, front: Sequence[int], back: Sequence[int]) -> None:
        self._front, self._back = list(front), list(back)
        self._lowercase = settings["normalizer"]["lowercase"]
        self._added = [token["content"] for token in settings["added_tokens"]]
        self._pieces = _Pieces(tokenizer)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordPieces | None:
        """For a tokenizer of BERT's kind; None for others, and for those that samples show to be others."""
        settings = json.loads(tokenizer.to_str())
        normalizer, cutter = settings["normalizer"] or {}, settings["pre_tokenizer"] or {}
        kinds = (normalizer.get("type"), cutter.get("type"), settings["model"].get("type"))
        if kinds != ("BertNormalizer", "BertPreTokenizer", "WordPiece") or not normalizer["clean_text"]:
            return None
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        if any(token[name] != value for token in settings["added_tokens"] for name, value in plain.items()):
            return None
        around = tokenizer.encode("").ids
        for count in range(len(around) + 1):
            found = cls(tokenizer, settings, around[:count], around[count:])
            if all(found.ids(text) in (None, tokenizer.encode(text).ids) for text in _SAMPLES):
                return found
        return None

    def ids(self, text: str, most: int | None = None) -> list[int] | None:
        """The ids of a text, cut to `most`, special ones included; None where the library has to find them."""
        if not text.isascii() or not (text.isprintable() or _UNUSUAL.search(text) is None):
            return None
        for content in self._added:
            if content in text:
                return None
        pieces = self._pieces
        ids = self._front.copy()
        for word in _WORD.findall(text.lower() if self._lowercase else text):
            ids += pieces[word]
        if most is not None and len(ids) + len(self._back) > most:
            del ids[most - len(self._back) :]
        ids += self._back
        return ids


class _Pieces(dict[str, Sequence[int]]):
    """Word -> ids of its pieces."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._model = tokenizer.model
        self._lock = threading.Lock()

    def __missing__(self, word: str) -> Sequence[int]:
        ids = tuple(token.id for token in self._model.tokenize(word))
        if len(word) <= LONGEST_WORD:
            with self._lock:
                if len(self) >= MOST_WORDS:
                    self.clear()
                self[word] = ids
        return ids
