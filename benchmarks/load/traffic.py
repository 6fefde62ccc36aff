# SPDX-License-Identifier: Apache-2.0
"""What is sent and when: requests of random texts, and the arrivals of a Poisson process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SHORTEST = 4
SHORT_SKEWED = (1 / 8, 0.8)  # median relative to the longest text, and the spread of the logarithm
SHAPES = ("short-skewed", "uniform", "fixed")
VOCABULARY = (5, 900)  # ids that every model served here has


@dataclass(frozen=True)
class Request:
    """The texts of one request.

    Attributes:
        ids: int32 [texts, length of the longest], zeros after a text's end.
        seq_lens: int32 [texts, 1].
        texts: the texts that the ids were made of, if there are any.
    """

    ids: Array
    seq_lens: Array
    texts: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return int(self.seq_lens.sum())

    def tensors(self) -> dict[str, Array]:
        """Input name -> array; a single text fills its row and needs no seq_lens."""
        # Either all inputs or none: the server never batches requests with and without an optional input together.
        return {"input_ids": self.ids, **({"seq_lens": self.seq_lens} if len(self.seq_lens) > 1 else {})}


@dataclass(frozen=True)
class Traffic:
    """A kind of requests.

    Attributes:
        shape: the distribution of lengths: "short-skewed" is log-normal with a median of an eighth of `longest`, as of
            queries, titles and sentences; "uniform" from SHORTEST to `longest`; "fixed" all `longest`.
        longest: tokens of the longest text.
        texts: texts per request.
    """

    shape: str = "short-skewed"
    longest: int = 512
    texts: int = 1

    def lengths(self, count: int, rng: np.random.Generator) -> Array:
        """Lengths [count] of texts."""
        if self.shape == "fixed":
            return np.full(count, self.longest)
        if self.shape == "uniform":
            return rng.integers(SHORTEST, self.longest + 1, count)
        median, spread = SHORT_SKEWED
        drawn = rng.lognormal(np.log(median * self.longest), spread, count)
        return np.asarray(np.clip(drawn.round().astype(int), SHORTEST, self.longest))

    def requests(self, count: int, seed: int = 0) -> list[Request]:
        """`count` different requests; the same seed gives the same ones."""
        rng = np.random.default_rng(seed)
        return [self._request(rng) for _ in range(count)]

    def _request(self, rng: np.random.Generator) -> Request:
        seq_lens = self.lengths(self.texts, rng).astype(np.int32)[:, None]
        ids = rng.integers(*VOCABULARY, (self.texts, int(seq_lens.max())), dtype=np.int32)
        return Request(np.where(np.arange(ids.shape[1]) < seq_lens, ids, 0).astype(np.int32), seq_lens)


def arrivals(rate: float, seconds: float, rng: np.random.Generator) -> Array:
    """Times of a Poisson process with `rate` events per second, in seconds from its start."""
    count = rng.poisson(rate * seconds)
    return np.sort(rng.uniform(0, seconds, count))
