# SPDX-License-Identifier: Apache-2.0
"""How long the texts of a file are in a model's own tokens, and what padding them would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from padfree.contract.fields import Fields
from padfree.contract.texts import parse_text
from padfree.runtime.text import read_tokenizer_file, tokenizer_path

from .batches import read_text_rows
from .errors import BuildError
from .tokenization import as_build_errors

BATCHES = (1, 8, 32, 128)
TEXT_ADVICE = "lengths are those of texts that the model reads; pass some in a column or field 'text'"
_PERCENTILES = (50, 90, 99)
_FIRST_BUCKET = 8


@dataclass(frozen=True)
class TextLengths:
    """Tokens of every text, in the order of the file; `cut` of them were longer than the model takes."""

    lengths: tuple[int, ...]
    cut: int

    @property
    def mean(self) -> float:
        """Tokens of a text on average."""
        return float(np.mean(self.lengths))

    def percentiles(self) -> dict[int, int]:
        """Percent of the texts -> the most tokens that one of these has."""
        in_order = sorted(self.lengths)
        return {percent: in_order[-(-percent * len(in_order) // 100) - 1] for percent in _PERCENTILES}

    def buckets(self) -> list[tuple[int, int, int]]:
        """(fewest tokens, most tokens, texts), up to the longest text; each is twice as wide as the one before."""
        counts, low, high = list[tuple[int, int, int]](), 0, _FIRST_BUCKET
        while low <= max(self.lengths):
            counts.append((low, high, sum(low <= length <= high for length in self.lengths)))
            low, high = high + 1, 2 * high
        return counts

    def padding(self, batch: int, *, in_order_of_length: bool = False) -> float:
        """The share of slots that hold padding if every batch of so many texts is padded to its longest.

        Args:
            batch: texts in one run.
            in_order_of_length: texts are sorted before they are cut into batches; otherwise they stay in the file's
                order, as they would arrive.
        """
        rows = sorted(self.lengths) if in_order_of_length else self.lengths
        slots = sum(len(part) * max(part) for part in (rows[at : at + batch] for at in range(0, len(rows), batch)))
        return 1 - sum(rows) / slots if slots else 0.0

    def to_dict(self) -> dict[str, Any]:
        """What `inspect --json` prints."""
        return {
            "count": len(self.lengths),
            "tokens": sum(self.lengths),
            "mean": self.mean,
            "longest": max(self.lengths),
            "percentiles": {str(percent): most for percent, most in self.percentiles().items()},
            "cut": self.cut,
            "buckets": [list(bucket) for bucket in self.buckets()],
            "padding": {str(batch): self.padding(batch) for batch in BATCHES},
            "padding_sorted": {str(batch): self.padding(batch, in_order_of_length=True) for batch in BATCHES},
        }


def measure_texts(
    path: Path, model: Path, metadata: Mapping[str, Any], tokenizer: Path | None, longest: int | None
) -> TextLengths:
    """Lengths of the texts of a file.

    Args:
        path: texts, as for `padfree run`.
        model: the model's file, beside which its tokenizer may lie.
        metadata: the model's own.
        tokenizer: a tokenizer.json to use instead of that one.
        longest: most tokens that the model takes; None: any number.

    Raises:
        BuildError: there is no tokenizer, or no text.
    """
    file = tokenizer_path(model) if tokenizer is None else tokenizer
    if tokenizer is None and not file.exists():
        raise BuildError(
            f"{model}: keeps no tokenizer, and lengths are counted in its tokens; pass --tokenizer tokenizer.json, or "
            "give the model's folder"
        )
    text_info = metadata.get("text")
    info = None if text_info is None else parse_text(Fields(text_info, str(model), "text", BuildError))
    texts: Sequence[Any] = read_text_rows(path, info, TEXT_ADVICE)
    if not texts:
        raise BuildError(f"{path}: holds no text; pass a file with some of those that the model will get")
    with as_build_errors(f"{path}: "):
        encoded = read_tokenizer_file(file).encoder(longest).encode(texts)
    return TextLengths(tuple(encoded.seq_lens.tolist()), int(encoded.cut.sum()))
