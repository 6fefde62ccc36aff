# SPDX-License-Identifier: Apache-2.0
"""BERT's tokens of plain texts, looked up word by word: what `tokenizers` gives, many times as fast.

BERT's tokenizer cuts a text into words and marks first, and each of these into pieces of its vocabulary, whatever
stands beside it. So a word's pieces need to be found once. Texts of ASCII alone are cut here; others, and tokenizers
that work otherwise, are left to the library. Many texts at a time are cut and looked up in compiled code where
padfree was installed with it (word_table).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise, permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from ..word_table import NEW_WORD, LookUpResult, WordTable, open_library
from .apart import Text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_WORDS = 1 << 18
"""Most words whose pieces are kept; beyond that all are forgotten, and found again."""
LONGEST_WORD = 64
"""Most letters of a word that is kept."""

_WORD = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")
_UNUSUAL = re.compile(r"[^\t\n\r -~]")  # control characters, which the normaliser takes away
_SAMPLES = ("", "a", "A cat's 3.5 mats!", "  un-  known?\tword\nqzxj ", "[CLS] x", "ALL [x] <y> #z@w.com ``it''")


class WordPieces:
    """The pieces of words, found once and kept. Threads may share one.

    Args:
        tokenizer: one that `of` has looked at.
        settings: its JSON.
        frame: what stands around the pieces of a text.
        pair_frame: around those of two texts; None: the library has to make tokens of pairs.
    """

    def __init__(
        self, tokenizer: Tokenizer, settings: Any, frame: _PieceFrame, pair_frame: _PieceFrame | None = None
    ) -> None:
        self._frame, self._pair_frame = frame, pair_frame
        self._lowercase = settings["normalizer"]["lowercase"]
        self._added_tokens = [token["content"] for token in settings["added_tokens"]]
        library = open_library()
        self._table: WordTable | None = None
        if library is not None:
            self._table = WordTable(library, lowercase=self._lowercase, left_out=self._added_tokens)
        self._pieces = _Pieces(tokenizer, self._table)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordPieces | None:
        """The table for a tokenizer of BERT's kind; None for others, and for those whose samples differ."""
        settings = json.loads(tokenizer.to_str())
        normalizer, cutter = settings["normalizer"] or {}, settings["pre_tokenizer"] or {}
        kinds = (normalizer.get("type"), cutter.get("type"), settings["model"].get("type"))
        if kinds != ("BertNormalizer", "BertPreTokenizer", "WordPiece") or not normalizer["clean_text"]:
            return None
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        if any(token[name] != value for token in settings["added_tokens"] for name, value in plain.items()):
            return None
        frames = (cls(tokenizer, settings, frame) for frame in _PieceFrame.all(tokenizer.encode("").ids, 1))
        ids = {text: tokenizer.encode(text).ids for text in _SAMPLES}
        pieces = next((some for some in frames if all(some.ids(text) in (None, ids[text]) for text in _SAMPLES)), None)
        if pieces is None:
            return None
        pairs = (
            cls(tokenizer, settings, pieces._frame, frame) for frame in _PieceFrame.all(tokenizer.encode("", "").ids, 2)
        )
        encodings = {texts: tokenizer.encode(*texts) for texts in permutations(_SAMPLES, 2)}
        wanted_tokens = {texts: (None, (encoding.ids, encoding.type_ids)) for texts, encoding in encodings.items()}
        return next(
            (some for some in pairs if all(some.pair(*texts) in wanted_tokens[texts] for texts in wanted_tokens)),
            pieces,
        )

    def look_up(self, texts: Sequence[Text], most: int | None = None) -> LookUpResult:
        """Tokens of texts, or pairs, as `ids` and `pair` give them; the library has to make those in `rows_left`."""
        frame, singles = self._frame, [text for text in texts if isinstance(text, str)]
        if not singles and self._pair_frame is not None:
            frame, singles = self._pair_frame, [text for pair in texts for text in pair]
        if self._table is None or len(singles) != len(texts) * (len(frame.parts) - 1):
            return LookUpResult.of_rows([self._row(text, most) for text in texts])
        result = self._table.look_up(singles, frame.parts, most)
        if result.counts.size and (result.counts == NEW_WORD).any():
            segments = len(frame.parts) - 1
            for row in np.flatnonzero(result.counts == NEW_WORD).tolist():
                for text in singles[row * segments : (row + 1) * segments]:
                    self._look_up(text)  # which adds its words to the table
            result = self._table.look_up(singles, frame.parts, most)
        return result

    def ids(self, text: str, most: int | None = None) -> list[int] | None:
        """The ids of a text, cut to `most`, special ones included; None where the library has to find them."""
        pieces = self._look_up(text)
        if pieces is None:
            return None
        front, back = self._frame.parts
        if most is not None:
            del pieces[max(0, most - len(front) - len(back)) :]
        return [*front, *pieces, *back]

    def pair(self, first: str, second: str, most: int | None = None) -> tuple[list[int], list[int]] | None:
        """Ids and types of two texts; None where the library has to find them, or to cut them to `most`."""
        one, two = self._look_up(first), self._look_up(second)
        if self._pair_frame is None or one is None or two is None:
            return None
        front, middle, back = self._pair_frame.parts
        ids = [*front, *one, *middle, *two, *back]
        if most is not None and len(ids) > most:
            return None
        before = len(front) + len(one) + len(middle)
        return ids, [0] * before + [1] * (len(ids) - before)

    def _row(self, text: Text, most: int | None) -> tuple[list[int], list[int]] | None:
        if not isinstance(text, str):
            return self.pair(*text, most)
        ids = self.ids(text, most)
        return None if ids is None else (ids, [0] * len(ids))

    def _look_up(self, text: str) -> list[int] | None:
        """The pieces of a text; None where it is not plain."""
        if not text.isascii() or not (text.isprintable() or _UNUSUAL.search(text) is None):
            return None
        for content in self._added_tokens:
            if content in text:
                return None
        pieces = self._pieces
        ids: list[int] = []
        for word in _WORD.findall(text.lower() if self._lowercase else text):
            ids += pieces[word]
        return ids


@dataclass(frozen=True)
class _PieceFrame:
    """The ids before, between and after the pieces of texts."""

    parts: tuple[Sequence[int], ...]

    @classmethod
    def all(cls, ids: Sequence[int], texts: int) -> Iterator[_PieceFrame]:
        """Every way in which so many texts may stand among these ids."""
        for offsets in combinations_with_replacement(range(len(ids) + 1), texts):
            cuts = [0, *offsets, len(ids)]
            yield cls(tuple(ids[start:end] for start, end in pairwise(cuts)))


class _Pieces(dict[str, Sequence[int]]):
    """Word -> ids of its pieces."""

    def __init__(self, tokenizer: Tokenizer, table: WordTable | None) -> None:
        super().__init__()
        self._model = tokenizer.model
        self._table = table
        self._lock = threading.Lock()

    def __missing__(self, word: str) -> Sequence[int]:
        ids = tuple(token.id for token in self._model.tokenize(word))
        if len(word) <= LONGEST_WORD:
            with self._lock:
                if len(self) >= MOST_WORDS:
                    self.clear()
                    if self._table is not None:
                        self._table.clear()
                self[word] = ids
                if self._table is not None:
                    self._table.add(word, ids)
        return ids
