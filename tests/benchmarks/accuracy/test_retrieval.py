# SPDX-License-Identifier: Apache-2.0
"""The retrieval task: documents of varying lengths, and queries that show which document they were made from."""

from __future__ import annotations

import numpy as np

from benchmarks.accuracy import retrieval


def test_a_query_shares_most_words_with_its_document_alone() -> None:
    actual = retrieval.pairs(200, 100, seed=5)
    documents = [set(item.document[1:].tolist()) for item in actual]
    for at, item in enumerate(actual):
        shared = [sum(word in words for word in item.query[1:].tolist()) for words in documents]
        assert int(np.argmax(shared)) == at
        assert len(item.query) <= retrieval.LONGEST_QUERY + 1


def test_lengths_and_ids() -> None:
    actual = retrieval.pairs(300, 100, seed=6)
    lengths = [len(item.document) for item in actual]
    assert min(lengths) < 20
    assert 80 < max(lengths) <= 100
    ids = np.concatenate([row for item in actual for row in (item.query[1:], item.document[1:])])
    assert ids.min() >= retrieval.FIRST_WORD
    assert ids.max() < retrieval.VOCAB_SIZE
    assert all(item.query[0] == item.document[0] == retrieval.START for item in actual)


def test_seeds() -> None:
    first, same, other = (retrieval.pairs(5, 50, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a.document, b.document) for a, b in zip(first, same, strict=True))
    assert not all(np.array_equal(a.document, b.document) for a, b in zip(first, other, strict=True))
