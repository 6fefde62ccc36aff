# SPDX-License-Identifier: Apache-2.0
"""Pairs of a query and a document that are computed apart: each query once, whatever the number of its pairs."""

from __future__ import annotations

from itertools import chain

import numpy as np
from padfree.runtime import Array
from padfree.runtime.request import RaggedBatch


def share_queries(pairs: RaggedBatch) -> tuple[RaggedBatch, Array]:
    """The sequences of pairs without those of queries that came before, and which of these each pair has.

    Tokens are compared, not texts. Where all queries differ, nothing changes.

    Args:
        pairs: two sequences for each, a query and then a document.

    Returns:
        (the sequences, int64 [pairs, 2]: the numbers of each pair's query and document among them).
    """
    columns = list(pairs.rows().values())
    documents = np.arange(1, pairs.seq_lens.size, 2, dtype=np.int64)
    first: dict[bytes, int] = {}
    queries = np.fromiter(
        (first.setdefault(b"".join(rows[at].tobytes() for rows in columns), at) for at in (documents - 1).tolist()),
        np.int64,
        documents.size,
    )
    numbers = np.array(sorted(chain(first.values(), documents.tolist())), np.int64)
    return pairs.take(numbers), np.searchsorted(numbers, np.stack([queries, documents], axis=1))
