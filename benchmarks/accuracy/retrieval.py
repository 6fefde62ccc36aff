# SPDX-License-Identifier: Apache-2.0
"""A generated retrieval task with known answers: short queries, and documents of very different lengths.

A document is a list of words; a query is some of its words in another order, a quarter of them replaced by others. The
task is to find the document that a query was made from among all documents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import list_operations
from .list_operations import START

WORDS = 2000
FIRST_WORD = list_operations.VOCAB_SIZE
VOCAB_SIZE = FIRST_WORD + WORDS
SHORTEST_DOCUMENT, SHORTEST_QUERY, LONGEST_QUERY = 12, 8, 15
REPLACED = 0.25


@dataclass(frozen=True)
class Pair:
    """Token ids of a query and of the document that it was made from."""

    query: np.ndarray
    document: np.ndarray


def pairs(count: int, max_length: int, seed: int) -> list[Pair]:
    """Seeded pairs; documents have a start token and 12 to max_length - 1 words, uniformly in the logarithm."""
    rng = np.random.default_rng((seed, FIRST_WORD))
    lengths = np.exp(rng.uniform(np.log(SHORTEST_DOCUMENT), np.log(max_length), count)).astype(np.int64)
    return [_pair(rng, int(length)) for length in np.minimum(lengths, max_length - 1)]


def _pair(rng: np.random.Generator, length: int) -> Pair:
    document = rng.integers(FIRST_WORD, VOCAB_SIZE, length)
    size = min(length, int(rng.integers(SHORTEST_QUERY, LONGEST_QUERY + 1)))
    query = rng.permutation(document)[:size]
    replaced = rng.random(size) < REPLACED
    query[replaced] = rng.integers(FIRST_WORD, VOCAB_SIZE, int(replaced.sum()))
    return Pair(*(np.concatenate([[START], words]).astype(np.int32) for words in (query, document)))
