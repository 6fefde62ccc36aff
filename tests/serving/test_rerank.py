# SPDX-License-Identifier: Apache-2.0
"""/v1/rerank and /v2/rerank through Cohere's clients, and a model that is no reranker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.http_requests import post
from tests.support.served_models import Array, Server, expected_rows

QUERY = "where is the cat"
TEXTS = ["the cat sat on the mat", "rain", "it rained the whole day", "a"]
TOLERANCE = 1e-5


def shares() -> Array:
    """Every text's relevance, as Cohere calls it."""
    logits = expected_rows([(QUERY, text) for text in TEXTS], 1)[:, 0]
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


@pytest.mark.parametrize("name", ["Client", "ClientV2"])
def test_documents_come_in_the_order_of_their_relevance(reranker: Server, name: str) -> None:
    cohere = pytest.importorskip("cohere")
    answer = getattr(cohere, name)(api_key="none", base_url=reranker.url).rerank(
        model="reranker", query=QUERY, documents=TEXTS, top_n=3
    )
    wanted = shares()
    order = np.argsort(-wanted)[:3]
    assert [item.index for item in answer.results] == order.tolist()
    np.testing.assert_allclose([item.relevance_score for item in answer.results], wanted[order], atol=TOLERANCE)


def test_documents_come_back_where_they_are_wanted(reranker: Server) -> None:
    cohere = pytest.importorskip("cohere")
    answer = cohere.Client(api_key="none", base_url=reranker.url).rerank(
        query=QUERY, documents=[{"text": text} for text in TEXTS], return_documents=True
    )
    assert [item.document.text for item in answer.results] == [TEXTS[item.index] for item in answer.results]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/"])
def test_requests_as_those_for_vllm_and_infinity(reranker: Server, path: str) -> None:
    status, answer = post(reranker, path, model="m", query=QUERY, documents=TEXTS, top_n=2, return_documents=True)
    assert status == 200
    order = np.argsort(-shares())[:2]
    assert [item["index"] for item in answer["results"]] == order.tolist()
    assert [item["document"]["text"] for item in answer["results"]] == [TEXTS[at] for at in order]
    np.testing.assert_allclose([item["relevance_score"] for item in answer["results"]], shares()[order], atol=TOLERANCE)
    assert (answer["object"], answer["model"]) == ("rerank", "reranker")
    assert answer["usage"]["total_tokens"] > 4 * len(TEXTS)


def test_relevance_as_the_model_gives_it(reranker: Server) -> None:
    _, answer = post(reranker, "/rerank", query=QUERY, documents=TEXTS, raw_scores=True)
    wanted = -np.sort(-expected_rows([(QUERY, text) for text in TEXTS], 1)[:, 0])
    np.testing.assert_allclose([item["relevance_score"] for item in answer["results"]], wanted, atol=1e-4)


def test_a_model_of_vectors_is_no_reranker(embedder: Server) -> None:
    cohere: Any = pytest.importorskip("cohere")
    with pytest.raises(cohere.core.api_error.ApiError) as raised:
        cohere.ClientV2(api_key="none", base_url=embedder.url).rerank(model="m", query=QUERY, documents=TEXTS)
    assert raised.value.status_code == 424
    assert raised.value.body == {
        "message": "model is not a reranker model, it is an embedding model and answers /v1/embeddings, /v1/embed, "
        "/v2/embed, /embed, /similarity"
    }
