# SPDX-License-Identifier: Apache-2.0
"""Packed tokens of texts and pairs, as a tokenizer of transformers without padding makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.runtime.text import Text, TextEncoder, count_characters
from padfree.runtime.texts import IDS, TYPES
from tokenizers import Tokenizer

CHARACTERS_A_RUN = 1 << 15
"""Characters of texts that are tokenised together: the GPU works on one part while the host tokenises the next."""


@dataclass(frozen=True)
class PackedTexts:
    """Tokens of some texts one after the other: `inputs` are the names and values [T] of a model's call."""

    inputs: dict[str, npt.NDArray[np.int32]]
    seq_lens: list[int]


class TextTokens:
    """Makes packed tokens as a tokenizer of transformers without padding does. Pickles hold the tokenizer's JSON.

    Args:
        settings: JSON of the tokenizer, as `backend_tokenizer.to_str()` gives it.
        side: which end long texts lose: "right" or "left".
        with_types: whether texts have token types.
    """

    def __init__(self, settings: str, side: str, with_types: bool) -> None:
        self._arguments = (settings, side, with_types)
        self._with_types = with_types
        tokenizer = Tokenizer.from_str(settings)
        tokenizer.no_padding()
        self._encoder = TextEncoder(tokenizer, None, side=side, token_types=with_types)

    def read(self, texts: Sequence[Text], most: int | None) -> PackedTexts:
        """Tokens of texts, or of pairs of texts, cut to `most` with special tokens."""
        if most != self._encoder.most:
            self._encoder.cut_to(most)
        encoded = self._encoder.encode(texts)
        inputs = {IDS: encoded.ids, **({TYPES: encoded.types} if self._with_types else {})}
        return PackedTexts(inputs, encoded.seq_lens.tolist())

    def parts(self, texts: Sequence[Text], most: int | None) -> Iterator[PackedTexts]:
        """As `read`, in parts of which each fills a run."""
        start = characters = 0
        for stop, text in enumerate(texts, start=1):
            characters += count_characters(text)
            if characters >= CHARACTERS_A_RUN or stop == len(texts):
                yield self.read(texts[start:stop], most)
                start, characters = stop, 0

    def __reduce__(self) -> Any:
        return TextTokens, self._arguments
