# SPDX-License-Identifier: Apache-2.0
"""Requests of texts whose words are as frequent as in real languages, and which are as long as the ids of Traffic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .traffic import Request, Traffic

WORDS = 30_000
SHARES = np.cumsum(1 / np.arange(1, WORDS + 1))
MARKS = (", ", ". ", " - ", "; ")
A_MARK = 0.12  # share of the gaps between words that have a punctuation mark
SPECIALS = 2  # ids added around a text


@dataclass(frozen=True)
class TextTraffic:
    """Texts with as many tokens as a Traffic's requests have.

    Attributes:
        traffic: how long texts are, and how many there are per request.
        tokenizer: the model's tokenizer.json, of BERT's kind.
    """

    traffic: Traffic
    tokenizer: Path

    def requests(self, count: int, seed: int = 0) -> list[Request]:
        """`count` different requests; the same seed gives the same ones."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.tokenizer))
        tokenizer.no_padding()
        rng = np.random.default_rng(seed)
        words = spell(tokenizer, rng)
        return [self._request(tokenizer, words, rng) for _ in range(count)]

    def _request(self, tokenizer: Any, words: list[tuple[str, int]], rng: np.random.Generator) -> Request:
        texts = [text_of(int(length), words, rng) for length in self.traffic.lengths(self.traffic.texts, rng)]
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = row
        return Request(ids, np.array([[len(row)] for row in rows], np.int32), tuple(texts))


def spell(tokenizer: Any, rng: np.random.Generator) -> list[tuple[str, int]]:
    """Words made of one to three pieces of a vocabulary, the most frequent first, and how many tokens each has."""
    names = [name for name in tokenizer.get_vocab() if name.removeprefix("##").isalpha() and name.isascii()]
    starts = sorted(name for name in names if not name.startswith("##") and len(name) > 1)
    ends = sorted(name.removeprefix("##") for name in names if name.startswith("##"))
    first, second, third = (rng.integers(len(some), size=WORDS) for some in (starts, ends, ends))
    parts = [(starts[one], ends[two], ends[three]) for one, two, three in zip(first, second, third, strict=True)]
    words = ["".join(some[:count]) for some, count in zip(parts, rng.integers(1, 4, WORDS), strict=True)]
    words.sort(key=len)  # frequent words are short
    encodings = tokenizer.encode_batch(words, add_special_tokens=False)
    return [(word, len(encoding)) for word, encoding in zip(words, encodings, strict=True)]


def text_of(tokens: int, words: list[tuple[str, int]], rng: np.random.Generator) -> str:
    """A text of `tokens` tokens, including special ones, or slightly fewer."""
    left = tokens - SPECIALS
    parts: list[str] = []
    for at in ranks(left, rng):
        word, size = words[at]
        if size > left:
            break
        mark = rng.random() < A_MARK and size < left
        parts.append(word + (MARKS[int(rng.integers(len(MARKS)))] if mark else " "))
        left -= size + mark
    return "".join(parts).rstrip()


def ranks(count: int, rng: np.random.Generator) -> list[int]:
    """Indices of words, with the frequencies of Zipf's law: in proportion to 1 / (index + 1)."""
    result: list[int] = np.searchsorted(SHARES, rng.random(max(count, 0)) * SHARES[-1]).tolist()
    return result
