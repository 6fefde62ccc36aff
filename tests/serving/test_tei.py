# SPDX-License-Identifier: Apache-2.0
"""The routes of text-embeddings-inference, with its bodies, errors and metrics."""

from __future__ import annotations

import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.contract.texts import TextInfo

from tests.support.http_requests import PATIENCE_S, get, post
from tests.support.served_models import DIGEST, POSITIONS, Server, expected_rows, fault, unit, write_model

TEXTS = ["the cat sat on the mat", "a", "rain, rain, and more of it"]
TOLERANCE = 1e-5
LONG = "cat " * (POSITIONS + 1)
INFO = {
    "model_id": str,
    "model_sha": type(None),
    "model_dtype": str,
    "model_type": dict,
    "max_concurrent_requests": int,
    "max_input_length": int,
    "max_batch_tokens": int,
    "max_batch_requests": type(None),
    "max_client_batch_size": int,
    "auto_truncate": bool,
    "tokenization_workers": int,
    "version": str,
    "sha": type(None),
    "docker_label": type(None),
}


def test_embed_gives_vectors_of_length_one_unless_told_otherwise(embedder: Server) -> None:
    wanted = expected_rows(TEXTS)
    np.testing.assert_allclose(post(embedder, "/embed", inputs=TEXTS)[1], unit(wanted), atol=TOLERANCE)
    np.testing.assert_allclose(post(embedder, "/embed", inputs=TEXTS[0])[1], unit(wanted[:1]), atol=TOLERANCE)
    plain = post(embedder, "/embed", inputs=TEXTS, normalize=False)[1]
    np.testing.assert_allclose(plain, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    prompted = post(embedder, "/embed", inputs=TEXTS, prompt_name="query")[1]
    np.testing.assert_allclose(prompted, unit(expected_rows([f"query: {text}" for text in TEXTS])), atol=TOLERANCE)


def test_many_texts_are_several_groups_and_come_back_in_order(embedder: Server) -> None:
    for count, more in (
        (300, ""),
        (1500, ""),
        (300, " café"),
        (1500, " café"),
    ):  # ASCII texts are looked up, on the loop or off it
        texts = [f"{TEXTS[at % 3]} {at}{more}" for at in range(count)]
        np.testing.assert_allclose(
            post(embedder, "/embed", inputs=texts)[1], unit(expected_rows(texts)), atol=TOLERANCE
        )


@pytest.mark.parametrize("path", ["/similarity", "/"])
@pytest.mark.parametrize("name", [None, "query"])
def test_similarity_gives_cosines(embedder: Server, path: str, name: str | None) -> None:
    prompt = "" if name is None else "query: "
    vectors = unit(expected_rows([prompt + text for text in TEXTS]))
    inputs = {"source_sentence": TEXTS[0], "sentences": [*TEXTS[1:], TEXTS[0]]}
    for parameters in ({}, None) if name is None else ({"prompt_name": name},):
        status, cosines = post(embedder, path, inputs=inputs, parameters=parameters)
        assert status == 200
        np.testing.assert_allclose(cosines, [*(vectors[1:] @ vectors[0]), 1], atol=TOLERANCE)
        assert max(cosines) <= 1


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"inputs": "a"}, 422, "'inputs' is a text, allowed: an object"),
        ({"inputs": {"sentences": ["a"]}}, 422, "'source_sentence' is missing"),
        ({"inputs": {"source_sentence": 1, "sentences": ["a"]}}, 422, "'source_sentence' is a number, allowed: a text"),
        ({"inputs": {"source_sentence": "a", "sentences": []}}, 422, "'sentences' is empty, allowed: a list of"),
        ({"inputs": {"source_sentence": "a", "sentences": "a"}}, 422, "'sentences' is a text, allowed: a list of one"),
        ({"inputs": {"source_sentence": "a", "sentences": ["a", 1]}}, 422, "'sentences' 1 is a number, allowed: a"),
        ({"inputs": {"source_sentence": "a", "sentences": ["a"] * 2048}}, 413, "batch size 2049 > maximum allowed"),
        ({"inputs": {"source_sentence": "a" * 65537, "sentences": ["a"]}}, 413, "'source_sentence' 0 has 65537 bytes"),
        ({"parameters": {"truncate": False}, "inputs": {"source_sentence": "a", "sentences": [LONG]}}, 413, "text 1 "),
        ({"parameters": {"prompt_name": "x"}, "inputs": {"source_sentence": "a", "sentences": ["a"]}}, 422, "'prompt_"),
        ({"parameters": [1], "inputs": {"source_sentence": "a", "sentences": ["a"]}}, 422, "'parameters' is a list"),
    ],
)
def test_similarities_that_are_refused(embedder: Server, fields: dict[str, Any], status: int, message: str) -> None:
    found, answer = post(embedder, "/similarity", **fields)
    assert (found, answer["error_type"]) == (status, "Validation")
    assert answer["error"].startswith(message)


def test_vectors_of_tokens_are_made_elsewhere(embedder: Server, reranker: Server) -> None:
    for server in (embedder, reranker):
        status, answer = post(server, "/embed_all", inputs=["a"])
        assert (status, answer["error_type"]) == (424, "Backend")
        assert "make these with padfree embed" in answer["error"]


@pytest.mark.parametrize("path", ["/embed_sparse", "/"])
def test_embed_sparse_gives_what_is_not_zero(sparse_encoder: Server, path: str) -> None:
    wanted = np.maximum(expected_rows(TEXTS), 0)
    assert 0 < np.count_nonzero(wanted) < wanted.size
    for inputs, rows in ((TEXTS, wanted), (TEXTS[0], wanted[:1])):
        status, answer = post(sparse_encoder, path, inputs=inputs)
        assert status == 200
        for found, row in zip(answer, rows, strict=True):
            assert [item["index"] for item in found] == np.flatnonzero(row).tolist()
            np.testing.assert_allclose([item["value"] for item in found], row[row > 0], atol=TOLERANCE)
    status, answer = post(sparse_encoder, "/embed", inputs="a")
    assert (status, answer["error_type"]) == (424, "Backend")


@pytest.mark.parametrize(("count", "more"), [(30, ""), (600, ""), (600, " café")])
def test_many_pairs_are_ranked(reranker: Server, count: int, more: str) -> None:
    texts = [f"{TEXTS[at % 3]} {at}{more}" for at in range(count)]
    logits = expected_rows([("where is the cat", text) for text in texts], 1)[:, 0]
    ranks = post(reranker, "/rerank", query="where is the cat", texts=texts, raw_scores=True)[1]
    found = np.empty(count)
    found[[rank["index"] for rank in ranks]] = [rank["score"] for rank in ranks]
    np.testing.assert_allclose(found, logits, rtol=TOLERANCE, atol=TOLERANCE)


def test_long_texts_are_cut_or_refused(embedder: Server, reranker: Server) -> None:
    assert post(embedder, "/embed", inputs=LONG)[0] == 200
    status, body = post(embedder, "/embed", inputs=LONG, truncate=False)
    assert (status, body["error_type"]) == (413, "Validation")
    assert str(POSITIONS) in body["error"]
    assert post(reranker, "/rerank", query="a", texts=[LONG])[0] == 413
    assert post(reranker, "/rerank", query="a", texts=[LONG], truncate=True)[0] == 200


def test_rerank_sorts(reranker: Server) -> None:
    logits = expected_rows([("where is the cat", text) for text in TEXTS], 1)[:, 0]
    status, ranks = post(reranker, "/rerank", query="where is the cat", texts=TEXTS, raw_scores=True, return_text=True)
    assert status == 200
    order = np.argsort(-logits)
    assert [rank["index"] for rank in ranks] == order.tolist()
    assert [rank["text"] for rank in ranks] == [TEXTS[at] for at in order]
    np.testing.assert_allclose([rank["score"] for rank in ranks], logits[order], rtol=TOLERANCE, atol=TOLERANCE)
    shares = [rank["score"] for rank in post(reranker, "/rerank", query="where is the cat", texts=TEXTS)[1]]
    np.testing.assert_allclose(shares, 1 / (1 + np.exp(-logits[order])), atol=TOLERANCE)


def test_predict_takes_texts_pairs_and_lists_of_both(classifier: Server) -> None:
    logits = expected_rows([("a", "rain"), "a"], 3)
    wanted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for inputs, rows in (("a", wanted[1:]), (["a", "rain"], wanted[:1]), ([["a", "rain"], ["a"]], wanted)):
        status, answer = post(classifier, "/predict", inputs=inputs)
        assert status == 200
        batch = answer if isinstance(answer[0], list) else [answer]
        for row, shares in zip(batch, rows, strict=True):
            assert [item["score"] for item in row] == sorted((item["score"] for item in row), reverse=True)
            found = {item["label"]: item["score"] for item in row}
            np.testing.assert_allclose([found[f"LABEL_{at}"] for at in range(3)], shares, atol=TOLERANCE)
    raw = {item["label"]: item["score"] for item in post(classifier, "/predict", inputs="a", raw_scores=True)[1]}
    np.testing.assert_allclose([raw[f"LABEL_{at}"] for at in range(3)], logits[1], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_predict_gives_what_the_folder_says_of_classes(problem: str, tmp_path: Path) -> None:
    text = TextInfo("text-classification", DIGEST, labels=("no", "maybe", "yes"), problem=problem)
    model = write_model(tmp_path / "classes.onnx", "logits", 3, text.to_dict())
    logits = expected_rows(TEXTS, 3)
    wanted = 1 / (1 + np.exp(-logits)) if problem.startswith("multi") else logits
    with Server(model, "--processes", "1") as server:
        answers = post(server, "/predict", inputs=[[text] for text in TEXTS])[1]
    for row, values in zip(answers, wanted, strict=True):
        found = {item["label"]: item["score"] for item in row}
        np.testing.assert_allclose([found[name] for name in text.labels], values, rtol=TOLERANCE, atol=TOLERANCE)


def test_tokenize_shows_tokens_and_where_they_are(embedder: Server) -> None:
    (tokens,) = post(embedder, "/tokenize", inputs="the cat")[1]
    assert [token["special"] for token in tokens] == [True, *[False] * (len(tokens) - 2), True]
    assert tokens[1] == {"id": tokens[1]["id"], "text": "the", "special": False, "start": 0, "stop": 3}
    (bare,) = post(embedder, "/tokenize", inputs="the cat", add_special_tokens=False)[1]
    assert [token["id"] for token in bare] == [token["id"] for token in tokens[1:-1]]


def test_info_has_the_fields_of_teis(embedder: Server, reranker: Server, classifier: Server) -> None:
    status, info = get(embedder, "/info")
    assert status == 200
    assert {name: type(value) for name, value in info.items()} == INFO
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    assert get(reranker, "/info")[1]["model_type"] == {"reranker": labels}
    assert list(get(classifier, "/info")[1]["model_type"]) == ["classifier"]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {}, 422, "Validation"),
        ("/embed", {"inputs": {"a": 1}}, 422, "Validation"),
        ("/embed", {"inputs": "a", "truncate": "yes"}, 422, "Validation"),
        ("/embed", {"inputs": ["a", None]}, 422, "Validation"),
        ("/embed", {"inputs": [[1, 2]]}, 422, "Tokenizer"),
        ("/embed", {"inputs": ["a"] * 2049}, 413, "Validation"),
        ("/embed", {"inputs": "a" * 65537}, 413, "Validation"),
        ("/embed", {"inputs": "é" * 32769}, 413, "Validation"),
        ("/embed_sparse", {"inputs": "a"}, 424, "Backend"),
        ("/predict", {"inputs": "a"}, 424, "Backend"),
        ("/rerank", {"query": "a", "texts": ["a"]}, 424, "Backend"),
        ("/rerank", {"query": "a", "texts": []}, 422, "Validation"),
        ("/embed", b"{", 422, "Validation"),
        ("/embed", b"[1]", 422, "Validation"),
        ("/embed", b'{"inputs": "\\ud800"}', 422, "Validation"),
    ],
)
def test_errors_have_teis_bodies(embedder: Server, path: str, body: Any, status: int, kind: str) -> None:
    found, answer = post(embedder, path, raw=body) if isinstance(body, bytes) else post(embedder, path, **body)
    assert (found, answer["error_type"]) == (status, kind)
    assert set(answer) == {"error", "error_type"}
    assert len(answer["error"]) < 400


def test_a_run_that_fails_is_an_error_of_its_own_request(embedder: Server) -> None:
    status, answer = post(embedder, "/embed", inputs=["a", fault()])
    assert (status, answer["error_type"]) == (424, "Backend")
    assert post(embedder, "/embed", inputs="a")[0] == 200


def test_health_and_metrics_count_all_processes(embedder: Server) -> None:
    def count(name: str) -> float:
        page = get(embedder, "/metrics")[1]
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))

    assert get(embedder, "/health")[0] == 200
    before = count("te_request_success"), count("te_embed_success"), count("te_request_failure")
    for _ in range(10):  # each on its own connection, to either process
        assert post(embedder, "/embed", inputs=TEXTS)[0] == 200
        assert post(embedder, "/embed", inputs=[])[0] == 422
    after = count("te_request_success"), count("te_embed_success"), count("te_request_failure")
    assert [new - old for new, old in zip(after, before, strict=True)] == [10, 30, 10]
    page = get(embedder, "/metrics")[1]
    for name in ("te_request_duration", "te_request_inference_duration", "te_request_queue_duration"):
        assert f'{name}_bucket{{le="+Inf"}}' in page
    for name in ("te_request_count", "te_embed_count", "te_queue_size", "te_batch_next_size", "te_batch_next_tokens"):
        assert f"# TYPE {name} " in page


def test_hugging_faces_client_speaks_to_it(embedder: Server) -> None:
    hub = pytest.importorskip("huggingface_hub")
    client, vectors = hub.InferenceClient(base_url=embedder.url), unit(expected_rows(TEXTS))
    np.testing.assert_allclose(client.feature_extraction(TEXTS[0]), vectors[:1], atol=TOLERANCE)
    cosines = client.sentence_similarity(TEXTS[0], TEXTS[1:])
    np.testing.assert_allclose(cosines, vectors[1:] @ vectors[0], atol=TOLERANCE)


def test_long_texts_lose_their_ends_alone(embedder: Server) -> None:
    for direction in ("right", "Right", None):
        assert post(embedder, "/embed", inputs=LONG, truncate=True, truncation_direction=direction)[0] == 200
    status, answer = post(embedder, "/embed", inputs=LONG, truncate=True, truncation_direction="left")
    assert status == 422
    assert answer["error"] == "'truncation_direction' is 'left', allowed: right, Right"


def test_other_tasks_are_told_what_the_model_answers(reranker: Server, sparse_encoder: Server) -> None:
    routes = "it is a reranker model and answers /v1/rerank, /v2/rerank, /rerank, /predict"
    for path, what in (
        ("/embed", "an embedding model"),
        ("/embed_sparse", "a sparse embedding model"),
        ("/similarity", "an embedding model"),
    ):
        status, answer = post(reranker, path, inputs="a")
        assert (status, answer) == (424, {"error": f"model is not {what}, {routes}", "error_type": "Backend"})
    status, answer = post(sparse_encoder, "/predict", inputs="a")
    assert status == 424
    assert answer["error"].endswith("it is a sparse embedding model and answers /embed_sparse")
    assert post(sparse_encoder, "/v1/embeddings", input="a")[1]["error"]["message"].startswith(
        "model is not an embedding model"
    )


def test_routes_that_are_not_there_are_told_those_that_are(embedder: Server) -> None:
    status, answer = post(embedder, "/embed_none", inputs="a")
    assert (status, answer["error_type"]) == (404, "Validation")
    assert answer["error"].startswith("POST /embed_none: no such route; there are /v1/embeddings, ")
    assert "/embed, " in answer["error"]
    assert "{" not in answer["error"]
    status, answer = post(embedder, "/v1/chat/completions", messages=[])
    assert (status, answer["error"]["code"]) == (404, 404)
    assert answer["error"]["message"].startswith("POST /v1/chat/completions: no such route")
    status, answer = get(embedder, "/embed")
    assert (status, answer["error"]) == (405, "GET /embed: allowed: POST")
    connection = HTTPConnection(*embedder.address, timeout=PATIENCE_S)
    connection.request("PUT", "/")
    refused = connection.getresponse()
    assert (refused.status, refused.getheader("allow")) == (405, "GET, HEAD, POST")
    connection.close()


def test_kinds_of_values_are_named(embedder: Server) -> None:
    for inputs, kind in (({"a": 1}, "an object"), (3, "a number"), (None, "null")):
        assert post(embedder, "/embed", inputs=inputs)[1]["error"].startswith(f"'inputs' is {kind}, allowed: ")
        assert post(embedder, "/rerank", query="a", texts=inputs)[1]["error"].startswith(
            f"'texts' is {kind}, allowed: "
        )
    unknown = post(embedder, "/embed", inputs="a", prompt_name="answer")[1]
    assert (
        unknown["error"]
        == "'prompt_name': prompt 'answer': the model's prompts are query, document; choose one of them"
    )


def test_health_asks_the_model_once_a_second(embedder: Server) -> None:
    """There are two processes, which each ask once per second, with a text of three tokens."""

    def computed_count() -> float:
        page = get(embedder, "/metrics")[1]
        return float(next(line.split()[-1] for line in page.splitlines() if line.startswith("padfree_tokens_total ")))

    before, begin = computed_count(), time.monotonic()
    assert {get(embedder, "/health")[0] for _ in range(60)} == {200}
    asked = (computed_count() - before) / 3
    assert 1 <= asked <= 2 * (2 + time.monotonic() - begin)
