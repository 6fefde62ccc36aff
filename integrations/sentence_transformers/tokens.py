# SPDX-License-Identifier: Apache-2.0
"""Tokens of texts and pairs, packed: looked up word by word where that is possible, by `tokenizers` otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.runtime.texts import IDS, TYPES
from padfree.runtime.word_pieces import WordPieces
from padfree.runtime.word_table import Looked, Row
from tokenizers import Tokenizer

Text = str | tuple[str, str]

CHARACTERS_A_RUN = 1 << 15
"""Of texts that are made tokens of together: the GPU works on one part while the host reads the next."""


@dataclass(frozen=True)
class Packed:
    """Tokens of some texts one behind the other: `inputs` are the names and values [T] of a model's call."""

    inputs: dict[str, npt.NDArray[np.int32]]
    seq_lens: list[int]


class TextTokens:
    """Makes packed tokens of texts as a tokenizer of transformers does that pads nothing. Pickles take its JSON along.

    Args:
        settings: JSON of the tokenizer, as `backend_tokenizer.to_str()` gives it.
        side: which end long texts lose: "right" or "left".
        with_types: whether the model takes token types.
    """

    def __init__(self, settings: str, side: str, with_types: bool) -> None:
        self._arguments = (settings, side, with_types)
        self._side, self._with_types = side, with_types
        self._tokenizer = Tokenizer.from_str(settings)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._words = WordPieces.of(self._tokenizer) if side == "right" else None

    def read(self, texts: Sequence[Text], most: int | None) -> Packed:
        """Tokens of texts, or of pairs of texts, cut to `most` with special tokens."""
        found = Looked.of_rows([None] * len(texts)) if self._words is None else self._words.look_up(texts, most)
        if found.left:
            found = found.completed(self._by_library([texts[at] for at in found.left], most))
        inputs = {IDS: found.ids, **({TYPES: found.types} if self._with_types else {})}
        return Packed(inputs, found.counts.tolist())

    def parts(self, texts: Sequence[Text], most: int | None) -> Iterator[Packed]:
        """As `read`, in parts of which each fills a run."""
        start = characters = 0
        for stop, text in enumerate(texts, start=1):
            characters += len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
            if characters >= CHARACTERS_A_RUN or stop == len(texts):
                yield self.read(texts[start:stop], most)
                start, characters = stop, 0

    def _by_library(self, texts: list[Text], most: int | None) -> list[Row]:
        if most is None:
            self._tokenizer.no_truncation()
        else:
            self._tokenizer.enable_truncation(most, direction=self._side)
        return [(encoding.ids, encoding.type_ids) for encoding in self._tokenizer.encode_batch(texts)]

    def __reduce__(self) -> Any:
        return TextTokens, self._arguments
