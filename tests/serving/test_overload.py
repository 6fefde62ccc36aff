# SPDX-License-Identifier: Apache-2.0
"""More than the model computes: callers who hang up, who retry at once, who send much beside one who sends little."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import numpy as np
import pytest

from tests.support.http_requests import PATIENCE_S, get, post
from tests.support.served_models import Server, expected, unit, wait_until, write_model

from .conftest import EMBEDDER

TEXT = "the cat sat on the mat and looked at the rain for a long time " * 3
MANY = 256
LATE_S = 3.0
SLACK_S = 0.05
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Some thousand tokens a second: a run of MANY texts takes seconds."""
    model = write_model(tmp_path_factory.mktemp("slow") / "slow.onnx", text=EMBEDDER.to_dict(), products=12)
    with Server(model, "--processes", "1", "--request-seconds", str(4 * LATE_S)) as server:
        yield server


def number(server: Server, name: str) -> float:
    """Of the metrics."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", get(server, "/metrics")[1], re.MULTILINE)
    assert found, name
    return float(found[1])


def computed(server: Server) -> float:
    return number(server, "padfree_tokens_total")


def tokens(server: Server) -> int:
    """Of TEXT."""
    return len(post(server, "/tokenize", inputs=TEXT)[1][0])


class Bulk(threading.Thread):
    """A client that sends MANY texts again and again, and at once again when they are refused."""

    def __init__(self, server: Server, until: float, wait_s: float = 0.0) -> None:
        super().__init__()
        self.answered, self.refused = 0, 0
        self.waits: list[float] = []
        self._server, self._until, self._wait_s = server, until, wait_s
        self._body = json.dumps({"inputs": [TEXT] * MANY})
        self.start()

    def run(self) -> None:
        connection = HTTPConnection(*self._server.address, timeout=PATIENCE_S)
        while time.monotonic() < self._until:
            connection.request("POST", "/embed", self._body)
            answer = connection.getresponse()
            answer.read()
            self.answered += answer.status == 200
            if answer.status == 429:
                self.refused += 1
                self.waits.append(float(answer.headers["retry-after"]))
                time.sleep(self._wait_s)
        connection.close()


def latencies(server: Server, count: int) -> list[float]:
    """Of one text, on one connection."""
    connection = HTTPConnection(*server.address, timeout=PATIENCE_S)
    wanted, found = unit(expected([TEXT])), []
    for _ in range(count):
        start = time.monotonic()
        connection.request("POST", "/embed", json.dumps({"inputs": TEXT}))
        answer = connection.getresponse()
        vectors = json.loads(answer.read())
        found.append(time.monotonic() - start)
        assert answer.status == 200
        np.testing.assert_allclose(vectors, wanted, atol=TOLERANCE)
    connection.close()
    return found


def test_nobody_is_computed_for_who_has_hung_up(slow: Server) -> None:
    of_all, before = 5 * MANY * tokens(slow), computed(slow)
    body = json.dumps({"inputs": [TEXT] * MANY}).encode()
    held = [socket.create_connection(slow.address) for _ in range(5)]
    for connection in held:
        connection.sendall(b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    wait_until(lambda: number(slow, "padfree_waiting_tokens") > 0)
    gone = number(slow, "padfree_gone_total")
    for connection in held:
        connection.close()
    wait_until(lambda: number(slow, "padfree_waiting_tokens") == 0, LATE_S)
    assert number(slow, "padfree_gone_total") > gone
    (one,) = latencies(slow, 1)
    assert one < LATE_S
    assert computed(slow) - before < of_all / 4


@pytest.mark.parametrize("clients", [2, 32])
def test_what_is_computed_is_answered_whatever_is_asked_for(slow: Server, clients: int) -> None:
    each, before = MANY * tokens(slow), computed(slow)
    bulk = [Bulk(slow, time.monotonic() + 4 * LATE_S, wait_s=0.05) for _ in range(clients)]
    for one in bulk:
        one.join()
    answered = sum(one.answered for one in bulk)
    assert answered > 0
    assert answered * each >= 0.9 * (computed(slow) - before)
    if clients > 2:
        waits = [wait for one in bulk for wait in one.waits]
        assert waits
        assert min(waits) >= 1


def test_one_text_waits_for_a_run_and_not_for_all_who_wait(slow: Server) -> None:
    bulk = [Bulk(slow, time.monotonic() + 2 * LATE_S, wait_s=0.2) for _ in range(4)]
    wait_until(lambda: number(slow, "padfree_waiting_tokens") > 0)
    found = latencies(slow, 25)
    # Two runs are under way at once, and share the cores.
    run_s = 2 * get(slow, "/info")[1]["max_batch_tokens"] / number(slow, "padfree_tokens_a_second")
    for one in bulk:
        one.join()
    assert np.quantile(found, 0.9) < 3 * run_s + SLACK_S, (found, run_s)


def test_requests_that_are_read_at_the_same_time_are_answered_whole(slow: Server) -> None:
    texts = [f"{at} {TEXT}"[: 20 + at] for at in range(90)]
    wanted = unit(expected(texts))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: post(slow, "/embed", inputs=texts), range(6)))
    for status, vectors in found:
        assert status == 200
        np.testing.assert_allclose(vectors, wanted, atol=TOLERANCE)
