# SPDX-License-Identifier: Apache-2.0
"""The batch that is measured: lengths, random tokens that a model takes, and its padded form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from padfree.contract.metadata import Metadata
from padfree.onnx_tools import Lengths
from padfree.runtime import Array, padded_feeds, random_batch
from padfree.runtime.request import RaggedBatch

from ..errors import BuildError


@dataclass(frozen=True)
class MeasuredBatch:
    """A ragged batch and the length S that peers without packing pad it to."""

    ragged: RaggedBatch
    seq_len: int

    @property
    def seq_lens(self) -> list[int]:
        """Tokens of every sequence."""
        return [int(length) for length in self.ragged.seq_lens]

    @property
    def tokens(self) -> int:
        """T, the sum of the lengths."""
        return sum(self.seq_lens)

    @property
    def slots(self) -> int:
        """B x S."""
        return len(self.seq_lens) * self.seq_len

    def pad(self, metadata: Metadata) -> dict[str, Array]:
        """Inputs [B, S] of a model with the padded interface."""
        return padded_feeds(self.ragged, metadata, self.seq_len)


def draw_lengths(lengths: Lengths, seed: int = 0) -> list[int]:
    """Lengths of the distribution that Lengths describes, its quantiles at B even steps, in random order."""
    steps = (np.arange(lengths.batch) + 0.5) / lengths.batch
    if 2 * lengths.mean >= lengths.maximum:
        lengths_drawn = lengths.maximum - 2 * (lengths.maximum - lengths.mean) * (1 - steps)
    else:
        lengths_drawn = lengths.maximum * steps ** (lengths.maximum / lengths.mean - 1)
    rounded = np.clip(np.round(lengths_drawn), 1, lengths.maximum).astype(int)
    return [int(length) for length in np.random.default_rng(seed).permutation(rounded)]


def read_lengths(path: Path) -> list[int]:
    """Lengths from a text file, separated by white space or commas.

    Raises:
        BuildError: the file cannot be read, or holds something else than positive integers.
    """
    try:
        words = path.read_text(encoding="utf-8").replace(",", " ").split()
        lengths = [int(word) for word in words]
    except (OSError, ValueError) as error:
        raise BuildError(
            f"{path}: no list of lengths ({error}); write integers separated by spaces or lines"
        ) from error
    if not lengths or min(lengths) < 1:
        raise BuildError(f"{path}: holds {lengths[:8]}, allowed: one or more lengths of at least 1; correct the file")
    return lengths


def draw_batch(metadata: Metadata, seq_lens: list[int], seq_len: int, seed: int = 0) -> MeasuredBatch:
    """Random values that every token input of the model allows."""
    return MeasuredBatch(random_batch(metadata, seq_lens, np.random.default_rng(seed)), seq_len)
