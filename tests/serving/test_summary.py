# SPDX-License-Identifier: Apache-2.0
"""When a server starts, it says what it serves, in agreement with /info and the answers to requests."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.classifiers import small_folder
from tests.support.http_requests import get, post
from tests.support.served_models import PROMPTS, Server, wait_until, write_embedder, write_reranker

LAST = "processes"
SOON_S = 30.0
DRAIN_S = 5


def summary_lines(server: Server) -> dict[str, str]:
    """The lines after the first one, which has the address, up to the last one."""
    assert server.process.stdout is not None
    found = dict[str, str]()
    while LAST not in found:
        line = re.fullmatch(r"  (\w+) +(\S.*)\n", server.process.stdout.readline())
        assert line
        found[line[1]] = line[2]
    return found


def test_it_says_task_model_lengths_routes_and_limits(tmp_path: Path) -> None:
    model = write_embedder(tmp_path / "small.onnx")
    options = ["--processes", "1", "--max-length", "9", "--long-texts", "refuse", "--max-texts", "5"]
    with Server(model, *options, "--api-key", "secret", "--api-key", "another", "--request-seconds", "7") as server:
        shown = summary_lines(server)
        info = get(server, "/info", key="secret")[1]
        assert shown["model"] == f"{info['model_id']}, fp32"
        assert shown["task"] == "embeddings of 8 numbers, pooling mean"
        assert len(post(server, "/embed", key="secret", inputs="a")[1][0]) == 8
        assert shown["texts"] == f"up to {info['max_input_length']} tokens, longer ones are refused"
        assert shown["prompts"] == ", ".join(PROMPTS)
        assert shown["limits"].startswith("5 texts and 8 MiB per request, ")
        assert shown["limits"].endswith(" waiting tokens, 7 s")
        assert shown["access"] == "2 API keys"
        assert shown["processes"] == "1 for HTTP"
        assert f"at most {info['max_batch_tokens']:,} tokens per run" in shown["speed"]
        assert "secret" not in str(shown)
        for path in shown["routes"].split(", "):
            assert 200 in (get(server, path, key="secret")[0], post(server, path, key="secret", **body(path))[0]), path


def body(path: str) -> dict[str, object]:
    if path in ("/v1/embed", "/v2/embed"):
        return {"texts": ["a"]}
    if path == "/similarity":
        return {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
    return {"input" if path.startswith("/v1") else "inputs": "a"}


def test_labels_of_taggers_are_named(tmp_path: Path) -> None:
    labels = ["O", *(f"B-KIND{at}" for at in range(10))]
    with Server(small_folder(tmp_path / "ner", "token", labels[:3]), "--processes", "1") as server:
        shown = summary_lines(server)
    assert shown["task"] == f"labels of words: {', '.join(labels[:3])}"
    assert shown["routes"].startswith("/tag, ")


def test_rerankers_and_no_key(tmp_path: Path) -> None:
    with Server(write_reranker(tmp_path / "small.onnx"), "--processes", "1", "--no-docs") as server:
        shown = summary_lines(server)
    assert shown["task"] == "reranking: one score per pair of texts"
    assert shown["routes"].startswith("/v1/rerank, /v2/rerank, /rerank, /predict, ")
    assert "/docs" not in shown["routes"]
    assert "everybody" in shown["access"]


def test_a_server_that_drains_answers_and_says_that_it_ends(embedder_file: Path) -> None:
    with Server(embedder_file, "--processes", "2", "--drain-seconds", str(DRAIN_S)) as server:
        assert get(server, "/health")[0] == 200
        begin = time.monotonic()
        server.process.terminate()
        healthy_s, answers = 0.0, []
        with suppress(ConnectionError):  # once the server has ended
            while True:
                assert post(server, "/embed", inputs="a")[0] == 200
                answers.append(get(server, "/health"))
                healthy_s = time.monotonic() - begin if answers[-1][0] == 200 else healthy_s
                time.sleep(0.05)
        assert time.monotonic() - begin >= DRAIN_S
        assert answers[-1] == (503, {"error": "the server ends soon", "error_type": "Unhealthy"})
        assert healthy_s < DRAIN_S / 2
        server.process.wait(SOON_S)
        assert server.process.returncode == 0


def closes_connections(server: Server) -> bool:
    """Whether the answer on a new connection asks for another one."""
    connection = HTTPConnection(*server.address, timeout=SOON_S)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.headers["connection"] == "close"


def test_answers_of_a_server_that_drains_close_their_connections(embedder_file: Path) -> None:
    with Server(embedder_file, "--processes", "1", "--drain-seconds", "300") as server:
        connection = HTTPConnection(*server.address, timeout=SOON_S)
        for wanted in (None, "close"):
            connection.request("POST", "/embed", '{"inputs": "a"}')
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            assert answer.headers["connection"] == wanted
            if wanted is None:
                server.process.terminate()
                wait_until(lambda: closes_connections(server), SOON_S)
        begin = time.monotonic()
        server.process.terminate()  # the second signal ends it at once
        server.process.wait(SOON_S)
        assert time.monotonic() - begin < SOON_S


@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_no_time_below_none(embedder_file: Path, seconds: str) -> None:
    with pytest.raises(RuntimeError, match="--drain-seconds"):
        Server(embedder_file, "--drain-seconds", seconds)
