# SPDX-License-Identifier: Apache-2.0
"""Connections that send too much, send too slowly or do not read: each is ended alone, and others are served."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvicorn
from padfree.serving.http.connection import ENDING_S, HEAD_S, IDLE_S, Connection
from tokenizers import Tokenizer
from uvicorn.server import ServerState

from tests.support.folders import TOKENIZER
from tests.support.http_requests import PATIENCE_S, get, post
from tests.support.served_models import Server, wait_until

MIB = 1 << 20
SLACK_S = 10.0  # for a machine that has other work


@pytest.fixture(scope="module")
def two(embedder_file: Path) -> Iterator[Server]:
    """A server that takes two requests at once."""
    with Server(embedder_file, "--processes", "1", "--max-concurrent-requests", "2") as server:
        yield server


def connect(server: Server) -> socket.socket:
    return socket.create_connection(server.address, timeout=PATIENCE_S)


def read_to_end(held: socket.socket) -> bytes:
    """The bytes that come until the other end hangs up."""
    found = b""
    with suppress(ConnectionError):
        while part := held.recv(1 << 16):
            found += part
    return found


def resident(pid: int) -> int:
    """The most memory that a process has used, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return 1024 * int(found[1])


HEADS = {
    "one large header": b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"a" * (64 * MIB),
    "many headers": b"GET /health HTTP/1.1\r\nhost: a\r\n"
    + b"".join(b"x%d: a\r\n" % at for at in range(100))
    + b"\r\n",
    "large together": b"GET / HTTP/1.1\r\nhost: a\r\n"
    + b"".join(b"x%d: " % at + b"a" * 999 + b"\r\n" for at in range(70)),
    "a long URL": b"GET /health?" + b"a" * 8200 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
}


@pytest.mark.parametrize("name", sorted(HEADS))
def test_large_heads_are_refused_before_anything_looks_at_them(two: Server, name: str) -> None:
    (pid,) = two.front_ends
    before = resident(pid)
    with connect(two) as held:
        with suppress(ConnectionError):  # the server may hang up before it has read everything
            held.sendall(HEADS[name])
        answer = read_to_end(held)
    assert answer.startswith(b"HTTP/1.1 431") or (not answer and len(HEADS[name]) > MIB)
    assert resident(pid) < before + 16 * MIB
    assert get(two, "/health")[0] == 200


def test_a_large_head_that_is_small_enough_is_read(two: Server) -> None:
    with connect(two) as held:
        head = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n" + b"x: " + b"a" * 50_000 + b"\r\n\r\n"
        held.sendall(head)
        assert read_to_end(held).startswith(b"HTTP/1.1 200")


def test_slow_heads_bodies_and_readers_are_ended(two: Server) -> None:
    start = time.monotonic()
    head, body, refused = connect(two), connect(two), connect(two)
    refused.sendall(b"POST /nowhere HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n{")
    head.sendall(b"POST /embed HTTP/1.1\r\nhost:")
    body.sendall(b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n{")
    assert read_to_end(body).startswith(b"HTTP/1.1 408")
    assert read_to_end(head).startswith(b"HTTP/1.1 408")
    assert read_to_end(refused).startswith(b"HTTP/1.1 404")
    assert HEAD_S / 2 < time.monotonic() - start < 3 * HEAD_S + SLACK_S
    content = json.dumps({"inputs": ["a b c d e f " * 5000] * 30}).encode()
    request = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(content) + content
    readers = [connect(two) for _ in range(2)]
    for reader in readers:
        reader.sendall(request)
    wait_until(lambda: post(two, "/embed", inputs="a")[0] == 429, PATIENCE_S)  # they count until they are read
    wait_until(lambda: post(two, "/embed", inputs="a")[0] == 200, 4 * HEAD_S)
    for held in (*readers, head, body, refused):
        held.close()


def test_tokens_of_large_requests_are_made_as_they_are_read(embedder_file: Path) -> None:
    texts = [f"{at} the cat sat on the mat " * 400 for at in range(200)]
    library = Tokenizer.from_file(str(TOKENIZER))
    with Server(embedder_file, "--processes", "1") as server:
        (pid,) = server.front_ends
        before = resident(pid)
        status, tokens = post(server, "/tokenize", inputs=texts)
        assert status == 200
        assert resident(pid) < before + 48 * MIB
    for text, found in zip(texts[::50], tokens[::50], strict=True):
        assert [token["id"] for token in found] == library.encode(text).ids


@pytest.mark.parametrize(("hard", "is_told"), [(1024, False), (128, True)])
def test_connections_are_limited_by_the_hard_limit_of_open_files_alone(
    embedder_file: Path, monkeypatch: pytest.MonkeyPatch, hard: int, is_told: bool
) -> None:
    """The soft limit is what login shells, containers and systemd give: 1,024, or less here."""
    popen = subprocess.Popen
    limit = ["sh", "-c", f'ulimit -Sn 64 && ulimit -Hn {hard} && exec "$@"', "sh"]
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: popen([*limit, *command], **options))
    with Server(embedder_file, "--processes", "1") as server, ExitStack() as held:
        for _ in range(80):
            held.enter_context(connect(server))
        assert get(server, "/health")[0] == 200
        if is_told:
            wait_until(lambda: f"connections, and may have {hard} files open" in server.log(), SLACK_S)
        time.sleep(1.0)
        assert ("files open" in server.log()) == is_told


def test_the_end_does_not_wait_for_who_reads_nothing(embedder_file: Path) -> None:
    content = json.dumps({"inputs": ["a b c d e f " * 5000] * 30}).encode()
    with Server(embedder_file, "--processes", "1") as server, connect(server) as held:
        held.sendall(b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
        time.sleep(2.0)
        start = time.monotonic()
        server.end()
        assert server.process.returncode == 0
        assert time.monotonic() - start < 5 * ENDING_S + 5


def test_other_spellings_of_bearer_and_no_redirects(embedder_file: Path) -> None:
    with Server(embedder_file, "--processes", "1", "--api-key", "k") as server:
        body = b'{"inputs": "a"}'
        for spelling, status in (("bearer", 200), ("BEARER", 200), ("Basic", 401)):
            with connect(server) as held:
                head = f"POST /embed HTTP/1.1\r\nhost: a\r\nauthorization: {spelling} k\r\nconnection: close\r\n"
                held.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                assert read_to_end(held).startswith(f"HTTP/1.1 {status}".encode())
        with connect(server) as held:
            held.sendall(
                b"POST /embed/ HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            answer = read_to_end(held)
        assert answer.startswith(b"HTTP/1.1 404")
        assert b"location" not in answer.lower()


def test_callers_who_do_not_wait_for_answers_get_all_of_them(two: Server) -> None:
    body = json.dumps({"inputs": ["a b c d e f " * 2000] * 3}).encode()
    request = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    with connect(two) as held:
        held.sendall(4 * request)
        time.sleep(1.0)
        held.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert read_to_end(held).count(b"HTTP/1.1 200") == 5
    assert post(two, "/embed", inputs="a")[0] == 200
    with connect(two) as gone:
        gone.sendall(4 * request)
    for _ in range(5):  # none of the requests counts for ever
        wait_until(lambda: post(two, "/embed", inputs="a")[0] == 200)


def test_clients_that_begin_with_http_2_are_told_what_to_do(two: Server) -> None:
    with connect(two) as held:
        held.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        start = time.monotonic()
        answer, frames = read_to_end(held), []
        assert time.monotonic() - start < 5 * ENDING_S
    while answer:
        size = 9 + int.from_bytes(answer[:3], "big")
        frames.append((answer[3], answer[9:size]))
        answer = answer[size:]
    (settings, nothing), (goaway, reason) = frames
    assert (settings, nothing, goaway, reason[:8]) == (4, b"", 7, bytes([0, 0, 0, 0, 0, 0, 0, 0xD]))
    assert b"send HTTP/1.1, or put a proxy in front" in reason
    assert post(two, "/embed", inputs="a")[0] == 200


UPGRADES = {
    "HTTP/2": "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
    "WebSocket": "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: a\r\nsec-websocket-version: 13\r\n",
}


@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES.keys())
@pytest.mark.parametrize("pieces", [1, 2, 1000])
def test_requests_for_other_protocols_are_answered_in_http_1(two: Server, upgrade: str, pieces: int) -> None:
    body = '{"inputs": "a"}'
    head = f"POST /embed HTTP/1.1\r\nhost: a\r\n{upgrade}"
    chunks = f"5\r\n{body[:5]}\r\n{len(body) - 5:x}\r\n{body[5:]}\r\n0\r\n\r\n"
    requests = (
        f"{head}content-length: {len(body)}\r\n\r\n{body}{head}transfer-encoding: chunked\r\n\r\n{chunks}"
        f"GET /v1/models HTTP/1.1\r\nhost: a\r\n{upgrade}\r\n"
        f"POST /embed HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()
    with connect(two) as held:
        held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = -(-len(requests) // pieces)
        for start in range(0, len(requests), size):
            held.sendall(requests[start : start + size])
        answer = read_to_end(held)
    assert answer.count(b"HTTP/1.1 200") == 4
    assert answer.count(b"HTTP/1.1 ") == 4
    assert answer.count(b"x-compute-tokens: 3\r\n") == 3


def test_a_connection_that_never_asks_is_closed() -> None:
    class Transport(asyncio.Transport):
        closed = False

        def get_write_buffer_size(self) -> int:
            return 0

        def close(self) -> None:
            self.closed = True

    async def look(seconds: float) -> bool:
        connection = Connection(uvicorn.Config(lambda: None, ws="none"), ServerState(), {}, None)
        transport = Transport()
        connection.connection_made(transport)
        connection._since -= seconds
        connection.look(ending=False)
        return transport.closed

    assert not asyncio.run(look(IDLE_S - SLACK_S))
    assert asyncio.run(look(IDLE_S + 1))


def final_answers(data: bytes) -> list[tuple[int, bytes]]:
    """Status and body of every answer that is not provisional."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status >= 200:
            length = int(head.lower().split(b"content-length: ")[1].split()[0])
            found.append((status, data[:length]))
            data = data[length:]
    return found


@pytest.mark.parametrize("requests", [1, 3])
def test_who_sends_no_more_is_answered(two: Server, requests: int) -> None:
    body = json.dumps({"inputs": ["the cat sat on the mat"] * 100}).encode()
    wanted = post(two, "/embed", inputs=["the cat sat on the mat"] * 100)[1]
    with connect(two) as held:
        for _ in range(requests):
            held.sendall(b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        held.shutdown(socket.SHUT_WR)
        answers = final_answers(read_to_end(held))
    assert [status for status, _ in answers] == [200] * requests
    assert all(json.loads(content) == wanted for _, content in answers)


@pytest.mark.parametrize(
    ("path", "status"), [("/embed", 413), ("/nowhere", 404), ("/health", 405)], ids=["too large", "no route", "method"]
)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_who_closes_after_one_request_reads_why_it_was_refused(
    two: Server, path: str, status: int, version: str
) -> None:
    """As proxies do by default, which send HTTP/1.0: they send the whole body, and only then read."""
    body = b" " * (32 * MIB)
    head = f"POST {path} HTTP/{version}\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with connect(two) as held:
        held.sendall(head.encode() + body)
        answer = b""
        while part := held.recv(1 << 16):
            answer += part
    assert int(answer.split()[1]) == status


def test_who_sends_half_a_body_and_no_more_is_hung_up_on(two: Server) -> None:
    with connect(two) as held:
        held.sendall(b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 99\r\n\r\n{")
        held.shutdown(socket.SHUT_WR)
        assert read_to_end(held) == b""
    assert get(two, "/health")[0] == 200
