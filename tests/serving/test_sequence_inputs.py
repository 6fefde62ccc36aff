# SPDX-License-Identifier: Apache-2.0
"""Models that read one or more numbers with the tokens of each text: requests have fields with the inputs' names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.onnx_tools import rewrite, save_model
from tokenizers import Tokenizer

from tests.support.http_requests import get, post
from tests.support.sequence_models import alone, rows_of, with_rows, write_tokenizer
from tests.support.served_models import Server, unit

TEXTS = ["a b c", "d", "e f"]
ROWS = rows_of(len(TEXTS))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module")
def server(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = tmp_path_factory.mktemp("model") / "model.onnx"
    save_model(rewrite(with_rows(), verify=False).model, model)
    options = ("--output", "vector", "--task", "embed", "--tokenizer", str(tokenizer))
    with Server(model, *options) as running:
        yield running


def expected_rows(tokenizer: Path, rows: dict[str, np.ndarray]) -> np.ndarray:
    read = Tokenizer.from_file(str(tokenizer))
    ids = [np.asarray(read.encode(text).ids) for text in TEXTS]
    return unit(np.stack([row["vector"] for row in alone(with_rows(), ids, rows)]))


def test_a_list_has_one_for_every_text(server: Server, tokenizer: Path) -> None:
    fields = {name: values.tolist() for name, values in ROWS.items()}
    _, answer = post(server, "/embed", inputs=TEXTS, **fields)
    np.testing.assert_allclose(answer, expected_rows(tokenizer, ROWS), atol=1e-5)


def test_one_for_all_texts(server: Server, tokenizer: Path) -> None:
    one: dict[str, Any] = {"language": 3, "source": 2, "features": [0.5, -1.0, 2.0], "row_id": 9}
    rows = {name: np.stack([np.asarray(value)] * len(TEXTS)) for name, value in one.items()}
    rows |= {"source": rows["source"][:, None], "features": rows["features"].astype(np.float32)}
    _, answer = post(server, "/v1/embeddings", input=TEXTS, model="m", **one)
    found = [item["embedding"] for item in answer["data"]]
    np.testing.assert_allclose(found, expected_rows(tokenizer, rows), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"language": None}, "'language' is missing, which the model reads for every text; send a number for all, or"),
        ({"features": None}, "'features' is missing, which the model reads for every text; send 3 numbers for all"),
        ({"language": 5}, "'language' is 5 for sequence 0, allowed: 0..4"),
        ({"language": [1, 2]}, "'language' has shape [2], allowed: [3]"),
        ({"language": "en"}, "'language' has type <U2, allowed: integers"),
        ({"features": [1.0, 2.0]}, "'features' has shape [3, 2], allowed: [3, 3]"),
        ({"features": [[1, 2, 3], [4], [5]]}, "'features': cannot become an array"),
        ({"features": [1e39, 0, 0]}, "'features' is inf for sequence 0, allowed: finite numbers"),
    ],
)
def test_what_does_not_fit_is_refused(server: Server, change: dict[str, Any], message: str) -> None:
    fields = {name: values.tolist() for name, values in ROWS.items()}
    body = {name: value for name, value in {"inputs": TEXTS, **fields, **change}.items() if value is not None}
    status, answer = post(server, "/embed", **body)
    assert (status, answer["error_type"]) == (422, "Validation")
    assert message in answer["error"]
    assert "Warning" not in server.log()


def test_health_and_speed_are_known_although_nobody_gave_values(server: Server) -> None:
    assert get(server, "/health") == (200, "")
    assert get(server, "/info")[1]["max_batch_tokens"] > 0
    page = get(server, "/metrics")[1]
    assert float(re.findall(r"^padfree_tokens_a_second (\S+)$", page, re.MULTILINE)[0]) > 0


def test_the_description_s_examples_are_answered(server: Server) -> None:
    paths = get(server, "/openapi.json")[1]["paths"]
    assert {"/embed", "/v1/embeddings", "/tokenize"} < set(paths)
    for path in ("/embed", "/v1/embeddings", "/tokenize"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]
        names = {"language", "source", "features", "row_id"}
        assert (set(body["schema"]["required"]) & names == names) is (path != "/tokenize")
        status, answer = post(server, path, **body["example"])
        assert status == 200, answer
