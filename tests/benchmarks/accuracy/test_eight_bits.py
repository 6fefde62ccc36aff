# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of sentence encoders in 8 bits makes of vectors."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy import fp8
from benchmarks.accuracy.fp8 import pairs, ranks, scores_of


def test_a_rank_is_the_number_of_nearer_documents() -> None:
    queries = np.asarray([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    documents = np.asarray([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert ranks(queries, documents).tolist() == [0, 0, 1]


def test_scores_of_ranks() -> None:
    scores = scores_of(np.asarray([0, 1, 2, 9, 10]))
    assert scores["top_1"].tolist() == [1, 0, 0, 0, 0]
    assert scores["ndcg_10"] == pytest.approx([1, 0.6309, 0.5, 0.2891, 0], abs=1e-4)


def test_a_query_is_the_whole_first_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    query, document = "Words come before its end.", "A document has enough letters. It may have more than one sentence."
    monkeypatch.setattr(fp8, "texts_at_hand", lambda _: ["none of it ends here", f"{query} {document}", "no end"])
    (pair,), others = pairs(3, ())
    assert (pair.query, pair.document) == (query, document)
    assert others == ["none of it ends here"]


def test_documents_are_different_once_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the second of two equal documents would never be found, or by chance."""
    ends = [
        "a document of enough letters which is cut here, unlike there",
        "a document of enough letters which differs",
    ]
    texts = [f"Sentence number {at} is a query.\n\n{ends[at % 8 == 1]} {'and more ' * 9}{at}" for at in range(8)]
    monkeypatch.setattr(fp8, "texts_at_hand", lambda _: texts)
    whole, others = pairs(8, ())
    assert len(whole) == 6
    assert others == [texts[0], texts[4]]
    cut, _ = pairs(8, (), words=8)
    assert [pair.query for pair in cut] == ["Sentence number 1 is a query.", "Sentence number 2 is a query."]
