# SPDX-License-Identifier: Apache-2.0
"""Scores of queries and documents with a vector for every token (MaxSim, arXiv 2004.12832)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from padfree.contract.late_interaction import LateInteraction

from ..rows import Array, bounds_of
from ..text.late import Query, kept_tokens
from .scores import Floats


def token_vectors(
    late: LateInteraction, rows: Sequence[Array], ids: Array, are_queries: Sequence[bool]
) -> list[Floats]:
    """The vectors of each text that count, float32 [tokens, N].

    Args:
        late: how texts are read.
        rows: the model's for each text, [tokens, N].
        ids: int32 [T], of all texts one after the other.
        are_queries: which texts are queries, for each.
    """
    seq_lens = np.fromiter(map(len, rows), np.int64, len(rows))
    mask = kept_tokens(late, ids, seq_lens, np.asarray(are_queries, np.bool_))
    parts = np.split(mask, bounds_of(seq_lens)[1:-1])
    return [np.asarray(row, np.float32)[part] for row, part in zip(rows, parts, strict=False)]


def max_sims(query: Floats, documents: Sequence[Floats]) -> Floats:
    """The scores of a query and documents, float32 [B].

    A score is the sum over the query's tokens of the largest product with a token of the document.

    Args:
        query: [tokens, N].
        documents: [tokens, N] each; 0 for those without tokens.
    """
    lens = np.fromiter(map(len, documents), np.int64, len(documents))
    scores = np.zeros(len(documents), np.float32)
    has_tokens = lens > 0
    if has_tokens.any():
        token_scores = np.concatenate([item for item in documents if len(item)]) @ query.T
        starts = bounds_of(lens[has_tokens])[:-1]
        scores[has_tokens] = np.maximum.reduceat(token_scores, starts, axis=0).sum(axis=1, dtype=np.float32)
    return scores


def pair_scores(pairs: Sequence[tuple[str, str]], encode: Callable[[list[str]], list[Floats]]) -> Floats:
    """The scores of pairs of a query and a document, float32 [B].

    Args:
        pairs: any number of them.
        encode: gives the vectors of queries (`Query`) and documents; it is called once, with each query once.
    """
    documents_by_query: dict[str, list[int]] = {}
    for at, (query, _) in enumerate(pairs):
        documents_by_query.setdefault(query, []).append(at)
    queries = [Query(query) for query in documents_by_query]
    vectors = encode([*queries, *(document for _, document in pairs)])
    documents, scores = vectors[len(queries) :], np.zeros(len(pairs), np.float32)
    for vectors_of_query, numbers in zip(vectors, documents_by_query.values(), strict=False):
        scores[numbers] = max_sims(vectors_of_query, [documents[at] for at in numbers])
    return scores
