# SPDX-License-Identifier: Apache-2.0
"""Scores by vectors of tokens: a score depends on its pair alone, and no more vectors are held than have to be."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from padfree.runtime.answers import max_sim, max_sims
from padfree.runtime.answers.max_sim import PairScores

Floats = npt.NDArray[np.float32]

WIDTH, LENGTHS = 128, (1, 7, 0, 20, 300, 33, 20)


def draw(*lengths: int, seed: int = 0) -> list[Floats]:
    """Vectors of length 1 for texts of so many tokens."""
    rng = np.random.default_rng(seed)
    texts = [rng.standard_normal((length, WIDTH), np.float32) for length in lengths]
    return [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in texts]


def test_scores_are_sums_of_largest_products_whatever_stands_beside() -> None:
    (query,), documents = draw(32, seed=1), draw(*LENGTHS)
    scores = max_sims(query, documents)
    assert scores.dtype == np.float32
    wanted = [(query.astype(np.float64) @ rows.T).max(axis=1).sum() if len(rows) else 0 for rows in documents]
    np.testing.assert_allclose(scores, wanted, rtol=1e-5)
    assert scores.tolist() == [float(max_sims(query, [rows])[0]) for rows in documents]
    assert max_sims(query, []).shape == (0,)


def test_vectors_that_were_kept_as_halves_or_lists_are_scored_in_float32() -> None:
    (query,), documents = draw(32, seed=1), draw(20, 300)
    halves = [rows.astype(np.float16) for rows in documents]
    scores = max_sims(query.astype(np.float16), halves)
    assert scores.tolist() == max_sims(query.astype(np.float16).astype(np.float32), halves).tolist()
    np.testing.assert_allclose(scores, max_sims(query, documents), rtol=1e-3)
    assert max_sims(query, [documents[0].tolist()]).tolist() == max_sims(query, documents[:1]).tolist()  # type: ignore[list-item]


def test_documents_are_read_one_after_the_other() -> None:
    alive: list[weakref.ref[Floats]] = []

    def documents() -> Iterator[Floats]:
        for seed in range(20):
            assert sum(one() is not None for one in alive) <= 1
            (rows,) = draw(20, seed=seed)
            alive.append(weakref.ref(rows))
            yield rows

    assert len(max_sims(draw(32)[0], documents())) == 20


def test_vectors_of_queries_are_held_until_their_last_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_sim, "GROUP", 2)
    queries, documents = draw(*[8] * 5, seed=1), draw(*[20] * 30)
    pairs = [(f"query {at % 5}", f"document {at}") for at in range(30)]
    scores = PairScores(pairs)
    assert scores.texts[:6] == [*(f"query {at}" for at in range(5)), "document 0"]
    held = []
    for number in np.argsort(scores.turns, kind="stable").tolist():
        scores.add(number, [*queries, *documents][number])
        held.append(len(scores._queries))
    assert max(held) == 2
    assert held[-1] == 0
    assert scores.scores.tolist() == [float(max_sims(queries[at % 5], [documents[at]])[0]) for at in range(30)]
