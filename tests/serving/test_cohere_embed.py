# SPDX-License-Identifier: Apache-2.0
"""/v1/embed and /v2/embed: by hand, and through Cohere's clients."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from tests.support.http_requests import post
from tests.support.served_models import POSITIONS, WIDTH, Array, Server, expected_rows, unit

TEXTS = ["the cat sat on the mat", "rain", "it rained the whole day"]
LONG = "a " * 200
PATHS = ("/v1/embed", "/v2/embed")
TOLERANCE = 1e-5


def expectation(prompt: str = "", width: int = WIDTH) -> Array:
    """The vectors of TEXTS after a prompt."""
    return unit(expected_rows([prompt + text for text in TEXTS])[:, :width])


def of_type(vectors: Array, kind: str) -> Array:
    """Vectors in a type, computed number by number."""
    if kind in ("int8", "uint8"):
        return np.array([[round(127 * float(one)) + 128 * (kind == "uint8") for one in row] for row in vectors])
    bits = ["".join("01"[int(one > 0)] for one in row) for row in vectors]
    offset = 128 * (kind == "binary")
    return np.array([[int(row[at : at + 8], 2) - offset for at in range(0, len(row), 8)] for row in bits])


@pytest.mark.parametrize("path", PATHS)
def test_each_type_is_made_of_the_same_vectors(embedder: Server, path: str) -> None:
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    status, answer = post(embedder, path, texts=TEXTS, embedding_types=kinds)
    assert status == 200
    assert (list(answer["embeddings"]), answer["texts"]) == (kinds, TEXTS)
    assert answer["response_type"] == "embeddings_by_type"
    found = answer["embeddings"]
    np.testing.assert_allclose(found["float"], expectation(), atol=TOLERANCE)
    decoded = [np.frombuffer(b64decode(one), "<f4") for one in found["base64"]]
    np.testing.assert_allclose(decoded, expectation(), atol=TOLERANCE)
    for kind in ("int8", "uint8"):
        np.testing.assert_allclose(found[kind], of_type(np.array(found["float"]), kind), atol=1)
        assert np.array_equal(np.array(found["uint8"]) - 128, found["int8"])
    for kind in ("binary", "ubinary"):
        np.testing.assert_array_equal(found[kind], of_type(np.array(found["float"]), kind))


@pytest.mark.parametrize("name", ["Client", "ClientV2"])
def test_cohere_s_clients_get_vectors(embedder: Server, name: str) -> None:
    cohere: Any = pytest.importorskip("cohere")
    client = getattr(cohere, name)(api_key="none", base_url=embedder.url)
    answer = client.embed(
        model="m", texts=TEXTS, input_type="search_query", embedding_types=["float", "int8"], truncate="END"
    )
    np.testing.assert_allclose(answer.embeddings.float_, expectation("query: "), atol=TOLERANCE)
    np.testing.assert_allclose(answer.embeddings.int8, 127 * expectation("query: "), atol=0.51)
    assert answer.meta.billed_units.input_tokens > len(TEXTS)


def test_the_first_version_gives_floats_where_no_type_is_asked_for(embedder: Server) -> None:
    _, first = post(embedder, "/v1/embed", texts=TEXTS)
    _, second = post(embedder, "/v2/embed", texts=TEXTS)
    assert first["response_type"] == "embeddings_floats"
    np.testing.assert_allclose(first["embeddings"], expectation(), atol=TOLERANCE)
    assert list(second["embeddings"]) == ["float"]
    np.testing.assert_allclose(second["embeddings"]["float"], expectation(), atol=TOLERANCE)


def test_fewer_dimensions_and_kinds_of_texts(embedder: Server) -> None:
    _, answer = post(embedder, "/v2/embed", texts=TEXTS, output_dimension=4, input_type="search_document")
    np.testing.assert_allclose(answer["embeddings"]["float"], expectation("passage: ", 4), atol=TOLERANCE)
    _, answer = post(embedder, "/v2/embed", texts=TEXTS, input_type="clustering")  # of which the model has no prompt
    np.testing.assert_allclose(answer["embeddings"]["float"], expectation(), atol=TOLERANCE)


def test_long_texts_are_cut_and_named_or_refused(embedder: Server) -> None:
    for fields in ({}, {"truncate": "END"}):
        status, answer = post(embedder, "/v2/embed", texts=["a", LONG], **fields)
        assert (status, answer["truncated"], len(answer["meta"]["warnings"])) == (200, [1], 1)
        assert "texts were longer" in answer["meta"]["warnings"][0]
        assert answer["meta"]["billed_units"]["input_tokens"] > POSITIONS
    assert post(embedder, "/v2/embed", texts=["a", LONG], truncate="NONE")[0] == 413


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"truncate": "START"}, "'truncate' is 'START', allowed: END, NONE"),
        ({"embedding_types": ["float", "int4"]}, "'embedding_types' has 'int4', allowed: float, int8, uint8"),
        ({"embedding_types": "int8"}, "'embedding_types' is a text, allowed: a list"),
        ({"input_type": "image"}, "'input_type' is 'image', allowed: query"),
        ({"texts": []}, "'texts' is empty"),
        ({"images": ["data:image/png;base64,AA=="]}, "'images' and 'inputs' are not answered"),
        ({"output_dimension": WIDTH + 1}, f"allowed: at most {WIDTH}"),
    ],
)
def test_what_is_not_answered_is_said(embedder: Server, fields: dict[str, Any], message: str) -> None:
    status, answer = post(embedder, "/v2/embed", **{"texts": TEXTS, **fields})
    assert status == 422
    assert message in answer["message"]


def test_a_reranker_has_no_vectors(reranker: Server) -> None:
    status, answer = post(reranker, "/v2/embed", texts=TEXTS)
    assert status == 424
    assert "model is not an embedding model" in answer["message"]


def test_documents_without_a_text_are_named(reranker: Server) -> None:
    status, answer = post(reranker, "/v1/rerank", query="a", documents=["b", {"title": "c"}])
    assert (status, answer["message"]) == (
        422,
        "'documents' 1 is an object without 'text'; send a text, or an object with it",
    )
