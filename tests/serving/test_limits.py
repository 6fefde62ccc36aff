# SPDX-License-Identifier: Apache-2.0
"""What a server refuses: missing keys, large or slow requests, and more requests at once than allowed."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import chain
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from padfree.runtime import SessionError
from padfree.serving import Choices, Limits, ServeOptions
from padfree.serving.errors import busy_error
from padfree.serving.http.calls import Calls
from padfree.serving.http.tei import error_body
from padfree.serving.listening import listen
from padfree.serving.metrics import WIDTH, ProcessCounters

from tests.support.http_requests import PATIENCE_S, get, post
from tests.support.served_models import Server, wait_until

KEY, OTHER = "a-secret", "another"


@pytest.fixture(scope="module")
def strict(embedder_file: Path) -> Iterator[Server]:
    """A server of one process with narrow limits and with keys."""
    options = {
        "--processes": "1",
        "--api-key": OTHER,
        "--max-body-bytes": "2000",
        "--max-texts": "4",
        "--max-text-bytes": "100",
        "--max-concurrent-requests": "2",
        "--max-waiting-tokens": "40",
        "--request-seconds": "4",  # a busy machine takes a second for one text
    }
    arguments = [word for option in options.items() for word in option]
    with Server(embedder_file, *arguments, "--accept-token-ids", PADFREE_API_KEY=KEY) as server:
        yield server


def half_sent(server: Server, body: str = "{") -> socket.socket:
    """Sends a request whose body does not come, or only in part."""
    held = socket.create_connection(server.address, timeout=PATIENCE_S)
    head = f"POST /embed HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\ncontent-length: 100\r\n\r\n{body}"
    held.sendall(head.encode())
    return held


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/v1/rerank", "/rerank", "/predict", "/tokenize"])
def test_who_has_no_key_gets_nothing(strict: Server, path: str) -> None:
    for key in (None, "wrong", KEY[:-1], f"{KEY}x"):
        status, body = post(strict, path, key=key, inputs="a")
        assert status == 401
        assert "API key" in json.dumps(body)
    for method, at in (("POST", path), ("GET", "/info")):
        connection = HTTPConnection(*strict.address, timeout=PATIENCE_S)
        connection.request(method, at, "{}")
        assert connection.getresponse().getheader("www-authenticate") == "Bearer"
        connection.close()


def test_keys_open_everything_and_health_needs_none(strict: Server) -> None:
    assert get(strict, "/health")[0] == 200
    for path in ("/info", "/metrics", "/v1/models"):
        assert get(strict, path)[0] == 401
        assert get(strict, path, key=KEY)[0] == 200
    for key in (KEY, OTHER):
        assert post(strict, "/embed", key=key, inputs="a")[0] == 200


def test_ids_are_tokens_already(strict: Server) -> None:
    status, body = post(strict, "/tokenize", key=KEY, inputs=[[5, 6], [7]])
    assert (status, body["error_type"]) == (422, "Validation")
    assert "'inputs' has token ids, allowed for /tokenize: a text, or a list of texts" in body["error"]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [(["a"] * 5, "batch size 5"), ("a" * 101, "101 bytes"), (["a" * 99] * 30, "2000 bytes"), ([[7] * 200], "128")],
)
def test_what_is_too_large_is_refused(strict: Server, inputs: object, words: str) -> None:
    status, body = post(strict, "/embed", key=KEY, inputs=inputs)
    assert (status, body["error_type"]) == (413, "Validation")
    assert words in body["error"]


def test_a_body_without_a_length_is_counted_as_it_comes(strict: Server) -> None:
    connection = HTTPConnection(*strict.address, timeout=PATIENCE_S)
    connection.request(
        "POST", "/embed", iter([b" " * 500] * 5), {"Authorization": f"Bearer {KEY}"}, encode_chunked=True
    )
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("ids", [[5, 6], [[5, 6], [7]]])
def test_ids_are_taken_where_the_server_is_told_to(strict: Server, ids: list[object]) -> None:
    status, vectors = post(strict, "/embed", key=KEY, inputs=ids)
    assert (status, len(vectors)) == (200, 2 if isinstance(ids[0], list) else 1)


@pytest.mark.parametrize("ids", [[5, 930], [5, -1], [5, 1 << 40], [[5], []], [[5], "a"], [5, True]])
def test_ids_that_the_model_does_not_have_are_refused(strict: Server, ids: list[object]) -> None:
    assert post(strict, "/embed", key=KEY, inputs=ids)[0] == 422
    assert post(strict, "/embed", key=KEY, inputs=[5, 6])[0] == 200


def test_more_requests_than_allowed_are_told_to_come_back(strict: Server) -> None:
    held = [half_sent(strict), half_sent(strict)]
    answers = []
    for _ in range(20):  # the two may not have been read yet
        answers.append(post(strict, "/embed", key=KEY, inputs="a"))
        if answers[-1][0] == 429:
            break
    status, body = answers[-1]
    assert (status, body["error_type"]) == (429, "Overloaded")
    for connection in held:
        connection.close()
    wait_until(lambda: post(strict, "/embed", key=KEY, inputs="a")[0] == 200)


@pytest.mark.parametrize("body", ["", "{"])
def test_a_body_that_does_not_come_is_not_waited_for(strict: Server, body: str) -> None:
    held = half_sent(strict, body)
    assert held.recv(100).startswith(b"HTTP/1.1 408")
    held.close()


def test_whoever_is_to_come_back_is_told_when() -> None:
    counters: Any = ProcessCounters(bytearray(8 * WIDTH), 0)
    nothing: Any = SimpleNamespace(log=print)
    calls = Calls(nothing, ServeOptions(), nothing, nothing, counters)
    for seconds, header in ((None, "1"), (2.5, "3")):
        response = calls._refuse(None, busy_error("too much", seconds), "overloaded", error_body)
        assert (response.status_code, response.headers["retry-after"]) == (429, header)


def test_a_compressed_body_is_refused_as_such(strict: Server) -> None:
    connection = HTTPConnection(*strict.address, timeout=PATIENCE_S)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Encoding": "gzip"}
    connection.request("POST", "/embed", gzip.compress(b'{"inputs": "a"}'), headers)
    answer = connection.getresponse()
    assert answer.status == 415
    assert "content-encoding 'gzip'" in json.loads(answer.read())["error"]
    connection.close()


def test_an_end_that_waits_for_ever_is_one(embedder_file: Path) -> None:
    with Server(embedder_file, "--processes", "1", "--grace-seconds", "inf") as server:
        assert post(server, "/embed", inputs="a")[0] == 200
        server.end()
        assert server.process.returncode == 0


def test_numbers_that_mean_nothing_are_refused() -> None:
    for wrong in (
        lambda: Limits(texts=0),
        lambda: Limits(seconds=0),
        lambda: ServeOptions(long_texts="shorten"),
        lambda: ServeOptions(processes=-1),
        lambda: ServeOptions(api_keys=("",)),
        lambda: ServeOptions(api_keys=(" a",)),
        lambda: ServeOptions(api_keys=("a\nb",)),
    ):
        with pytest.raises(SessionError, match=r"allowed|ASCII"):
            wrong()
    assert KEY not in repr(ServeOptions(api_keys=(KEY,)))
    assert Choices().task is None


def test_a_port_that_is_taken_is_not_shared() -> None:
    (first,) = listen("127.0.0.1", 0, 1)
    with first, pytest.raises(SessionError, match="another --host or --port"):
        listen("127.0.0.1", first.getsockname()[1], 2)


def test_of_servers_that_begin_at_one_instant_one_gets_the_port() -> None:
    for _ in range(100):
        (free,) = listen("127.0.0.1", 0, 1)
        port = free.getsockname()[1]
        free.close()
        together = Barrier(2)

        def begin(_: int, port: int = port, together: Barrier = together) -> list[socket.socket]:
            together.wait(PATIENCE_S)
            try:
                return listen("127.0.0.1", port, 2)
            except SessionError:
                return []

        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(begin, range(2)))
        for listener in chain(*found):
            listener.close()
        assert sorted(map(len, found)) == [0, 2]


def test_connections_are_dealt_out_among_all_sockets() -> None:
    listeners = listen("127.0.0.1", 0, 3)
    connections = [socket.create_connection(listeners[0].getsockname(), timeout=PATIENCE_S) for _ in range(60)]
    for listener in listeners:
        listener.settimeout(PATIENCE_S)
        connections.append(listener.accept()[0])
    for one in chain(connections, listeners):
        one.close()
