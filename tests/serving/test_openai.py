# SPDX-License-Identifier: Apache-2.0
"""/v1/embeddings and /v1/models, through OpenAI's own client and through LangChain's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.served_models import WIDTH, Server, expected_rows, unit

TEXTS = ["the cat sat on the mat", "a", "rain, rain, and more of it"]
TOLERANCE = 1e-5  # for vectors of length 1: sums of a few dozen numbers in another order


@pytest.fixture
def client(embedder: Server) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none", max_retries=0)


def test_texts_become_their_vectors(client: Any) -> None:
    answer = client.embeddings.create(model="embedder", input=TEXTS)  # the client asks for base64
    vectors = np.array([item.embedding for item in answer.data])
    np.testing.assert_allclose(vectors, unit(expected_rows(TEXTS)), atol=TOLERANCE)
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert (answer.model, answer.object) == ("embedder", "list")


def test_numbers_are_those_of_base64(client: Any) -> None:
    packed = client.embeddings.create(model="embedder", input=TEXTS[0]).data[0].embedding
    numbers = client.embeddings.create(model="embedder", input=TEXTS[0], encoding_format="float").data[0].embedding
    assert np.array(packed, np.float32).tolist() == np.array(numbers, np.float32).tolist()


def test_fewer_dimensions_have_length_one_again(client: Any) -> None:
    answer = client.embeddings.create(model="embedder", input=TEXTS, dimensions=3)
    vectors = np.array([item.embedding for item in answer.data])
    np.testing.assert_allclose(vectors, unit(expected_rows(TEXTS)[:, :3]), atol=TOLERANCE)


def test_usage_counts_tokens(client: Any) -> None:
    one, two = (client.embeddings.create(model="embedder", input=[TEXTS[0]] * count).usage for count in (1, 2))
    assert one.prompt_tokens == one.total_tokens > 2
    assert two.total_tokens == 2 * one.total_tokens


@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        ({"prompt_name": "query"}, "query: "),
        ({"input_type": "search_query"}, "query: "),
        ({"input_type": "passage"}, "passage: "),
        ({}, ""),
    ],
)
def test_prompts_stand_in_front(client: Any, asked: dict[str, str], prompt: str) -> None:
    answer = client.embeddings.create(model="embedder", input=TEXTS, extra_body=asked)
    wanted = unit(expected_rows([prompt + text for text in TEXTS]))
    np.testing.assert_allclose([item.embedding for item in answer.data], wanted, atol=TOLERANCE)


@pytest.mark.parametrize("ids", [[5, 6, 7], [[5, 6, 7], [8]]])
def test_ids_are_refused_and_the_error_says_what_to_do(client: Any, ids: list[Any]) -> None:
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False") as raised:
        client.embeddings.create(model="embedder", input=ids)
    assert raised.value.body["type"] == "Tokenizer"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ({"input": TEXTS, "dimensions": WIDTH + 1}, 422),
        ({"input": []}, 422),
        ({"input": [TEXTS[0], 7]}, 422),
        ({"input": TEXTS, "extra_body": {"prompt_name": "haiku"}}, 422),
        ({"input": ["a"] * 2049}, 413),
    ],
)
def test_what_is_wrong_is_an_error_of_the_client(client: Any, arguments: dict[str, Any], status: int) -> None:
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.APIStatusError) as raised:
        client.embeddings.create(model="embedder", **arguments)
    assert raised.value.status_code == status
    assert raised.value.body["code"] == status
    assert raised.value.body["message"] in str(raised.value)


def test_models_are_listed(client: Any) -> None:
    openai = pytest.importorskip("openai")
    assert [model.id for model in client.models.list()] == ["embedder"]
    assert client.models.retrieve("embedder").id == "embedder"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_langchain_gets_the_vectors(embedder: Server) -> None:
    langchain = pytest.importorskip("langchain_openai")
    embeddings = langchain.OpenAIEmbeddings(
        base_url=f"{embedder.url}/v1", api_key="none", model="embedder", check_embedding_ctx_length=False
    )
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), unit(expected_rows(TEXTS)), atol=TOLERANCE)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), unit(expected_rows(TEXTS[:1]))[0], atol=TOLERANCE)
