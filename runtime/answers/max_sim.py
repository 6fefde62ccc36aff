# SPDX-License-Identifier: Apache-2.0
"""Scores of queries and documents with a vector for every token (MaxSim, arXiv 2004.12832)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from padfree.contract.late_interaction import LateInteraction

from ..rows import Array, bounds_of
from ..text.late import Query, kept_tokens
from .scores import Floats

GROUP = 1024
"""Queries whose vectors are held at once: of 32 tokens and 128 numbers, 16 MiB."""


def token_vectors(
    late: LateInteraction, rows: Sequence[Array], ids: Array, are_queries: Sequence[bool]
) -> Iterator[Floats]:
    """The vectors of each text that count, float32 [tokens, N], each copied when it is asked for.

    Args:
        late: how texts are read.
        rows: the model's for each text, [tokens, N].
        ids: int32 [T], of all texts one after the other.
        are_queries: which texts are queries, for each.
    """
    seq_lens = np.fromiter(map(len, rows), np.int64, len(rows))
    mask = kept_tokens(late, ids, seq_lens, np.asarray(are_queries, np.bool_))
    parts = np.split(mask, bounds_of(seq_lens)[1:-1])
    return (np.asarray(row[part], np.float32) for row, part in zip(rows, parts, strict=False))


def max_sims(query: Floats, documents: Iterable[Floats]) -> Floats:
    """The scores of a query and documents, float32 [B].

    A score is the sum over the query's tokens of the largest product with a token of the document. It depends on
    nothing else: its bits are the same among any documents.

    Args:
        query: [tokens, N], also of float16 or as lists.
        documents: [tokens, N] each; 0 for those without tokens. One is read after the other.
    """
    columns = np.asarray(query, np.float32).T
    scores = [
        (np.asarray(document, np.float32) @ columns).max(axis=0).sum(dtype=np.float32) if len(document) else 0
        for document in documents
    ]
    return np.array(scores, np.float32)


class PairScores:
    """Scores of pairs of a query and a document, while the vectors of texts arrive: each query is computed once.

    The vectors of a document are used and not held, and those of a query are held until its last document is there.

    Args:
        pairs: any number of them.

    Attributes:
        texts: each query once, as a `Query`, and after them the document of every pair.
        turns: int64 [texts]. A text has to arrive after all texts with smaller numbers: some queries, their documents,
            the next queries.
        scores: float32 [pairs], of those whose document has arrived.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        numbers: dict[str, int] = {}
        self._query_of = [numbers.setdefault(query, len(numbers)) for query, _ in pairs]
        self._documents_left = Counter(self._query_of)
        self._queries: dict[int, Floats] = {}
        self.texts = [*map(Query, numbers), *(document for _, document in pairs)]
        groups = np.array([*range(len(numbers)), *self._query_of], np.int64) // GROUP
        self.turns = 2 * groups + (np.arange(len(self.texts)) >= len(numbers))
        self.scores = np.zeros(len(pairs), np.float32)

    def add(self, number: int, vectors: Floats) -> None:
        """Takes the vectors, [tokens, N], of the text with this number."""
        pair = number - (len(self.texts) - len(self.scores))
        if pair < 0:
            self._queries[number] = vectors
            return
        query = self._query_of[pair]
        self.scores[pair] = max_sims(self._queries[query], [vectors])[0]
        self._documents_left[query] -= 1
        if not self._documents_left[query]:
            del self._queries[query]
