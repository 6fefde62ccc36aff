# SPDX-License-Identifier: Apache-2.0
"""The score of a query and a document with a vector for every token (MaxSim, arXiv 2004.12832)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .scores import Floats


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
        starts = np.cumsum(lens[has_tokens]) - lens[has_tokens]
        scores[has_tokens] = np.maximum.reduceat(token_scores, starts, axis=0).sum(axis=1, dtype=np.float32)
    return scores
