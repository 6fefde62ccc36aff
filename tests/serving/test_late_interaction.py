# SPDX-License-Identifier: Apache-2.0
"""A model with a vector for every token, served: it ranks, and says so where something else is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from padfree.builder import cli

from tests.support.http_requests import get, post, whole
from tests.support.late_models import DOCUMENT_LENGTH, DOCUMENTS, QUERIES, QUERY_LENGTH, read, write_late_model
from tests.support.served_models import Server

TOLERANCE = 1e-4  # of scores of about 10, in float32


@pytest.fixture(scope="module")
def late_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves a ColBERT."""
    scratch = tmp_path_factory.mktemp("late")
    file: Path = scratch / "packed.onnx"
    assert cli.main(["optimize", str(write_late_model("colbert", scratch / "model")), "-o", str(file)]) == 0
    with Server(file, "--processes", "1") as server:
        yield server


def wanted_scores() -> list[float]:
    answers = read("colbert")
    return [float((answers.queries[0] @ document.T).max(axis=1).sum()) for document in answers.documents]


def test_texts_are_ranked_by_their_vectors(late_server: Server) -> None:
    wanted = wanted_scores()
    order = np.argsort(wanted)[::-1].tolist()
    found = post(late_server, "/rerank", query=QUERIES[0], texts=list(DOCUMENTS))[1]
    assert [item["index"] for item in found] == order
    np.testing.assert_allclose([item["score"] for item in found], np.asarray(wanted)[order], atol=TOLERANCE)
    cohere = post(late_server, "/v2/rerank", query=QUERIES[0], documents=list(DOCUMENTS), top_n=2)[1]
    assert [item["index"] for item in cohere["results"]] == order[:2]
    assert cohere["truncated"] == [4]  # the longest document, by its number among the documents


def test_a_query_is_computed_once_for_all_texts(late_server: Server) -> None:
    answers = read("colbert")
    headers, found = whole(late_server, "/rerank", query=QUERIES[0], texts=list(DOCUMENTS))
    assert int(headers["x-compute-tokens"]) == sum(map(len, [answers.query_ids[0], *answers.document_ids]))
    alone = [post(late_server, "/rerank", query=QUERIES[0], texts=[text])[1][0]["score"] for text in DOCUMENTS]
    assert [item["score"] for item in found] == sorted(alone, reverse=True)


def test_a_long_text_is_named_with_what_it_may_have(late_server: Server) -> None:
    documents = post(late_server, "/rerank", query=QUERIES[0], texts=["a", DOCUMENTS[4]], truncate=False)
    assert documents[0] == 413
    assert f"text 1 has more than {DOCUMENT_LENGTH} tokens" in documents[1]["error"]
    query = post(late_server, "/rerank", query=QUERIES[3], texts=["a"], truncate=False)[1]
    assert query["error"].startswith(f"the query has more than {QUERY_LENGTH} tokens, the most that the model takes")
    queries = post(late_server, "/embed_all", inputs=QUERIES[3], prompt_name="query", truncate=False)[1]
    assert f"text 0 has more than {QUERY_LENGTH} tokens" in queries["error"]


def test_vectors_of_cut_texts_say_so_in_their_headers(late_server: Server) -> None:
    headers, vectors = whole(late_server, "/embed_all", inputs=["a", DOCUMENTS[4], "b"])
    assert len(vectors) == 3
    assert headers["x-truncated-texts"] == "1"


@pytest.mark.parametrize("said", [{"prompt_name": "query"}, {"input_type": "search_query"}])
def test_vectors_of_tokens(late_server: Server, said: dict[str, str]) -> None:
    answers = read("colbert")
    queries = post(late_server, "/embed_all", inputs=list(QUERIES), **said)[1]
    for rows, wanted in zip(queries, answers.queries, strict=True):
        np.testing.assert_allclose(rows, wanted, atol=TOLERANCE)
    (document,) = post(late_server, "/embed_all", inputs=DOCUMENTS[0])[1]
    np.testing.assert_allclose(document, answers.documents[0], atol=TOLERANCE)
    status, answer = post(late_server, "/embed_all", inputs="a", prompt_name="passage")
    assert status == 422
    assert "prompt" in answer["error"]


def test_routes_of_other_models_say_what_it_is(late_server: Server) -> None:
    pairs = post(late_server, "/predict", inputs=[["a", "b"]])
    assert pairs[0] == 424
    assert "send a query with its texts to /rerank" in pairs[1]["error"]
    vectors = post(late_server, "/embed", inputs="a")[1]["error"]
    assert vectors == (
        "model is not an embedding model, it is a reranker model and answers /v1/rerank, /v2/rerank, /rerank, "
        "/embed_all"
    )
    paths = get(late_server, "/openapi.json")[1]["paths"]
    assert {"/rerank", "/embed_all"} < set(paths)
    assert "/predict" not in paths


def test_tokenize_shows_the_tokens_of_the_text_alone(late_server: Server) -> None:
    (tokens,) = post(late_server, "/tokenize", inputs=DOCUMENTS[1])[1]
    ids = read("colbert").document_ids[1]
    assert [token["id"] for token in tokens] == [ids[0], *ids[2:]]
