# SPDX-License-Identifier: Apache-2.0
"""Ids of requests, and the access log: a line per request, without texts and keys, which delays no request."""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from padfree.runtime import SessionError
from padfree.serving.access_log import MOST_LINES, AccessLog, check

from tests.support.http_requests import PATIENCE_S, get, post
from tests.support.served_models import Server, wait_until

KEY, OTHER = "a-secret", "another-secret"
SOON_S = 10.0
ID = "from-a.proxy:7"


def answer(server: Server, path: str, body: str | None = None, **headers: str) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer."""
    connection = HTTPConnection(*server.address, timeout=PATIENCE_S)
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/health", "/metrics", "/nowhere", "/tokenize"])
def test_every_answer_has_an_id(embedder: Server, path: str) -> None:
    body = json.dumps({"inputs": "a", "input": "a"}) if path in ("/embed", "/v1/embeddings", "/tokenize") else None
    assert answer(embedder, path, body, **{"x-request-id": ID})[1]["x-request-id"] == ID
    made = [answer(embedder, path, body)[1]["x-request-id"] for _ in range(3)]
    assert len(set(made)) == 3
    assert all(len(one) == 32 for one in made)


@pytest.mark.parametrize("bad", ["a b", "x" * 129, "a\tb", "ä", '"}'])
def test_ids_that_do_not_belong_in_a_log_are_replaced(embedder: Server, bad: str) -> None:
    found = answer(embedder, "/embed", '{"inputs": "a"}', **{"x-request-id": bad})[1]["x-request-id"]
    assert len(found) == 32
    assert found.isalnum()


def test_lines_say_what_came_and_no_text_or_key(embedder_file: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    options = ["--processes", "2", "--access-log", str(log), "--api-key", KEY, "--api-key", OTHER]
    with Server(embedder_file, *options) as server:
        key = {"Authorization": f"Bearer {OTHER}"}
        begin = datetime.now(timezone.utc).timestamp()
        told = answer(server, "/embed", '{"inputs": ["the zebra sat", "rain"]}', **key, **{"x-request-id": ID})[1]
        answer(server, "/embed", json.dumps({"inputs": "zebra " * 500}), **key)
        answer(server, "/tokenize", '{"inputs": "the zebra sat"}', **key)
        answer(server, "/embed", '{"inputs": []}', **key)
        answer(server, "/embed", '{"inputs": "zebra"}', Authorization="Bearer wrong")
        answer(server, "/nowhere?zebra=rain")
        answer(server, "/health")
        wait_until(lambda: len(lines(log)) == 7, SOON_S)
    text = log.read_text("utf-8")
    assert not [word for word in ("zebra", "rain", KEY, OTHER, "wrong", "Bearer") if word in text]
    found = lines(log)
    assert Counter((line["method"], line["path"], line["status"]) for line in found) == {
        ("POST", "/embed", 200): 2,
        ("POST", "/tokenize", 200): 1,
        ("POST", "/embed", 422): 1,
        ("POST", "/embed", 401): 1,
        ("GET", "/nowhere", 404): 1,
        ("GET", "/health", 200): 1,
    }
    (first,) = [line for line in found if line["id"] == ID]
    assert (first["texts"], first["key"], first["client"]) == (2, 2, "127.0.0.1")
    assert first["tokens"] == int(told["x-compute-tokens"])
    assert "truncated" not in first
    assert 0 < first["seconds"] < PATIENCE_S
    assert first["bytes"] > 100
    assert begin - 1 < datetime.fromisoformat(first["time"]).timestamp() < time.time() + 1
    (cut,) = [line for line in found if line.get("truncated")]
    assert (cut["truncated"], cut["tokens"]) == (1, 128)
    assert Counter(line.get("error") for line in found) == {None: 5, "validation": 1, "unauthorized": 1}


def test_a_head_has_no_bytes(embedder_file: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    with Server(embedder_file, "--processes", "1", "--access-log", str(log)) as server:
        connection = HTTPConnection(*server.address, timeout=PATIENCE_S)
        connection.request("HEAD", "/metrics")
        head = connection.getresponse()
        assert head.read() == b""
        assert int(head.headers["content-length"]) > 0
        connection.close()
        wait_until(lambda: len(lines(log)) == 1, SOON_S)
    assert (lines(log)[0]["method"], lines(log)[0]["bytes"]) == ("HEAD", 0)


def test_callers_who_hang_up_are_in_it(embedder_file: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    with Server(embedder_file, "--processes", "1", "--access-log", str(log)) as server:
        with socket.create_connection(server.address) as gone:
            gone.sendall(b'POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"inputs"')
        wait_until(lambda: [line["status"] for line in lines(log)] == [499], SOON_S)


def test_processes_write_whole_lines_into_one_file(embedder_file: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    with Server(embedder_file, "--processes", "3", "--access-log", str(log)) as server, ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda at: post(server, "/embed", inputs=f"text {at}")[0], range(300)))
    assert statuses == [200] * 300
    assert len({line["id"] for line in lines(log)}) == 300  # all of them, once the server has ended


def test_a_file_that_is_rotated_is_made_anew(embedder_file: Path, tmp_path: Path) -> None:
    log, old = tmp_path / "access.jsonl", tmp_path / "access.jsonl.1"
    with Server(embedder_file, "--processes", "1", "--access-log", str(log)) as server:
        get(server, "/health")
        wait_until(lambda: len(lines(log)) == 1, SOON_S)
        log.rename(old)
        get(server, "/info")
        wait_until(lambda: len(lines(log)) == 1, SOON_S)
    assert [lines(path)[0]["path"] for path in (old, log)] == ["/health", "/info"]


def test_a_full_disk_costs_lines_and_no_answers(embedder_file: Path, tmp_path: Path) -> None:
    """No file of the front-end can grow, which the system reports as it reports a full disk."""
    log = tmp_path / "access.jsonl"
    with Server(embedder_file, "--processes", "1", "--access-log", str(log)) as server:
        (pid,) = server.front_ends
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
        assert [post(server, "/embed", inputs="a")[0] for _ in range(3)] == [200] * 3
        wait_until(lambda: "lines of the access log could not be written" in server.log(), SOON_S)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        get(server, "/info")
        wait_until(lambda: [line["path"] for line in lines(log)] == ["/info"], SOON_S)


def test_stdout_has_lines_after_those_of_the_start(embedder_file: Path) -> None:
    server = Server(embedder_file, "--processes", "1", "--access-log", "-")
    get(server, "/info")
    server.process.terminate()
    written, _ = server.process.communicate(timeout=PATIENCE_S)
    assert [json.loads(line)["path"] for line in written.splitlines() if line.startswith("{")] == ["/info"]


def test_nobody_waits_for_a_log_that_nobody_reads(embedder_file: Path) -> None:
    """A pipe holds 64 KiB; the server continues, says what is missing, and ends when it is told to."""
    with Server(embedder_file, "--processes", "1", "--access-log", "-") as server:
        connection = HTTPConnection(*server.address, timeout=PATIENCE_S)
        for _ in range(MOST_LINES + 1500):
            connection.request("GET", "/v1/models")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
        connection.close()
        wait_until(lambda: "lines of the access log could not be written" in server.log(), SOON_S)
        assert post(server, "/embed", inputs="a")[0] == 200
        begin = time.monotonic()
        server.process.terminate()
        server.process.wait(PATIENCE_S)
        assert time.monotonic() - begin < SOON_S
        assert server.process.returncode == 0


@pytest.mark.parametrize("place", [Path("missing/access.jsonl"), Path()])
def test_a_file_that_cannot_be_written_is_said_before_the_start(
    place: Path, embedder_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(SessionError, match=r"--access-log .* cannot be written"):
        check(str(tmp_path / place))
    with pytest.raises(RuntimeError, match="--access-log"):
        Server(embedder_file, "--access-log", str(tmp_path / place))


def test_a_pipe_that_nobody_reads_is_refused_and_one_that_is_read_gets_lines(
    embedder_file: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SessionError, match="--access-log"):
        check(str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with Server(embedder_file, "--processes", "1", "--access-log", str(pipe)) as server:
        get(server, "/info")
    assert json.loads(os.read(reader, 1 << 16))["path"] == "/info"
    os.close(reader)


def test_paths_of_any_bytes_are_one_line(embedder_file: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    paths = ["/%ed%a0%80", "/%00%0a%22%7d", "/" + "x" * 5000, "/%ff", "//embed"]
    with Server(embedder_file, "--processes", "1", "--access-log", str(log)) as server:
        assert [get(server, path)[0] for path in paths] == [404] * len(paths)
        wait_until(lambda: len(lines(log)) == len(paths), SOON_S)
    assert max(map(len, log.read_bytes().splitlines())) < 1000


def test_lines_that_find_no_room_are_counted() -> None:
    told: list[str] = []
    log = AccessLog("/dev/full", told.append)
    for _ in range(10):
        log.add(b"{}")
    log.close()
    log.tell_lost()
    log.tell_lost()
    assert told == ["10 lines of the access log could not be written"]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (Path.exists, "cannot be read (No such file or directory)"),
        (lambda path: path.write_text("\n \n"), "has no key"),
        (lambda path: path.write_bytes(b"\xff\n"), "it is not UTF-8"),
    ],
)
def test_a_file_without_keys_is_refused(
    write: Callable[[Path], object], said: str, embedder_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    write(path)
    with pytest.raises(RuntimeError) as error:
        Server(embedder_file, "--api-key-file", str(path))
    assert said in " ".join(str(error.value).split())


def test_keys_may_be_in_a_file(embedder_file: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n\n{OTHER}\r\n")
    with Server(embedder_file, "--processes", "1", PADFREE_API_KEY_FILE=str(tmp_path / "keys")) as server:
        statuses = [post(server, "/embed", key=key, inputs="a")[0] for key in (KEY, OTHER, "third", None)]
    assert statuses == [200, 200, 401, 401]


def test_a_key_of_a_variable_may_end_with_a_line_end(embedder_file: Path) -> None:
    with Server(embedder_file, "--processes", "1", PADFREE_API_KEY=f"{KEY}\n") as server:
        assert [post(server, "/embed", key=key, inputs="a")[0] for key in (KEY, OTHER)] == [200, 401]
