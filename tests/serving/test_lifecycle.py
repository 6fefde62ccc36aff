# SPDX-License-Identifier: Apache-2.0
"""The start and the end of a server: requests that were taken are answered, and processes that die are replaced."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from padfree.builder import cli
from padfree.runtime.budget import Budget
from padfree.runtime.session import Session
from padfree.runtime.text.tasks import describe
from padfree.runtime.texts import tokenizer_path
from padfree.serving import Choices, ServeOptions, wire
from padfree.serving.http.process import CANNOT_START, FrontEnd, main
from tokenizers import Tokenizer

from tests.support.folders import TOKENIZER, write_folder
from tests.support.http_requests import get, post
from tests.support.served_models import MOST_END_S, Server, expected_rows, find_spawned, unit, wait_until, write_model

from .conftest import EMBEDDER

TEXTS = ["the cat sat on the mat", "a", "rain, rain, and more of it"]
TOLERANCE = 1e-5
MOST_TOLD_S = 20.0  # it takes five seconds where the machine has no other work; a request may wait for thirty


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_under_way_are_answered_before_the_end(embedder_file: Path, number: int) -> None:
    wanted = unit(expected_rows(TEXTS))
    with Server(embedder_file, "--processes", "2") as server:
        answered, refused, wrong = [0] * 8, [0] * 8, []

        def send(at: int) -> None:
            while not refused[at]:
                try:
                    status, vectors = post(server, "/embed", inputs=TEXTS)
                except ConnectionError:
                    refused[at] += 1  # no byte of an answer came, so the request was not taken
                    continue
                except Exception as error:
                    wrong.append(repr(error))
                    return
                if status != 200 or not np.allclose(vectors, wanted, atol=TOLERANCE):
                    wrong.append(f"{status} {vectors}")
                answered[at] += 1

        threads = [threading.Thread(target=send, args=(at,)) for at in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(answered))
        stderr = server.end(number)
        for thread in threads:
            thread.join()
        assert server.process.returncode == 0
        assert wrong == []
        assert "Traceback" not in stderr


def test_a_front_end_that_dies_is_replaced(embedder_file: Path) -> None:
    with Server(embedder_file, "--processes", "2") as server:
        pids = server.front_ends
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: len(server.front_ends) == 2 and pids[0] not in server.front_ends)
        for _ in range(10):
            assert post(server, "/embed", inputs=TEXTS)[0] == 200
        assert "is started again" in server.end()


def test_front_ends_end_with_the_process_of_the_model(embedder_file: Path) -> None:
    server = Server(embedder_file, "--processes", "2")
    pids = server.front_ends
    server.process.kill()
    server.process.communicate()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_stopped_front_end_does_not_keep_the_port_when_the_model_s_process_is_killed(embedder_file: Path) -> None:
    server = Server(embedder_file, "--processes", "2")
    pids = server.front_ends
    os.kill(pids[0], signal.SIGSTOP)
    server.process.kill()
    server.process.communicate()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    with Server(embedder_file, "--processes", "1", "--port", str(server.address[1])) as again:
        assert again.address == server.address
        assert post(again, "/embed", inputs=TEXTS)[0] == 200


def test_a_full_disk_costs_lines_of_the_log_and_no_answers(embedder_file: Path) -> None:
    """No file can grow, which the system reports to the process as it reports a full disk."""
    with Server(embedder_file, "--processes", "1") as server:
        (pid,) = server.front_ends
        for one in (server.process.pid, pid):
            resource.prlimit(one, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in server.front_ends and len(server.front_ends) == 1)
        time.sleep(1.5)  # by then the line would have been written
        assert post(server, "/embed", inputs=TEXTS)[0] == 200
        assert "is started again" not in server.log()
        assert server.end() == ""
        assert server.process.returncode == 0


def test_a_front_end_that_hangs_ends_itself_where_nobody_else_does() -> None:
    hanging = """
import asyncio, time
from types import SimpleNamespace
from padfree.serving.http import process

async def hang():
    server = SimpleNamespace(server_state=SimpleNamespace(connections=()), should_exit=False)
    link, requests = SimpleNamespace(give_up=lambda: None, is_leaving=False), SimpleNamespace(log=None)
    looking = asyncio.create_task(process._look(link, SimpleNamespace(), requests, server, process.ConnectionCount(0)))
    await asyncio.sleep(0.1)
    time.sleep(60)

process.HUNG_S = 0.3
asyncio.run(hang())
"""
    done = subprocess.run([sys.executable, "-c", hanging], check=False, timeout=MOST_END_S)
    assert done.returncode == -signal.SIGALRM


def test_the_log_has_a_line_a_second_at_most(embedder_file: Path) -> None:
    start = time.monotonic()
    with Server(embedder_file, "--processes", "2") as server:
        for _ in range(200):
            assert post(server, "/embed", inputs=[7])[0] == 422
        lines = [line for line in server.end().splitlines() if line.strip()]
    assert 1 <= len(lines) <= time.monotonic() - start + 1  # the last line comes at the end
    counts = [re.search(r"(\d+) requests? ended with an error \((\d+) tokenizer\)$", line) for line in lines]
    assert all(found and found[1] == found[2] for found in counts), lines
    assert sum(int(found[1]) for found in counts if found) == 200


def test_a_folder_is_served(tmp_path: Path) -> None:
    modules = [("Pooling", {"pooling_mode_mean_tokens": True}), ("Normalize", {})]
    folder = write_folder(
        tmp_path / "folder", modules=modules, max_seq_length=32, settings={"prompts": {"query": "q: "}}
    )
    with Server(folder, "--processes", "1", "--name", "mine") as server:
        info = get(server, "/info")[1]
        assert (info["model_id"], info["max_input_length"]) == ("mine", 32)
        vectors = np.array(post(server, "/embed", inputs=TEXTS, prompt_name="query")[1])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=TOLERANCE)
        assert not np.allclose(vectors, post(server, "/embed", inputs=TEXTS)[1])


@pytest.mark.parametrize(
    ("output", "options", "words"),
    [
        ("hidden", ["--tokenizer", str(TOKENIZER)], "none of these names tells what answers a text"),
        ("hidden", ["--tokenizer", str(TOKENIZER), "--output", "rows"], "outputs are hidden"),
        ("hidden", ["--tokenizer", str(TOKENIZER), "--output", "hidden"], "--task"),
        ("sentence_embedding", [], "keeps no tokenizer"),
        ("sentence_embedding", ["--tokenizer", "nowhere.json"], "no such tokenizer"),
        ("sentence_embedding", ["--tokenizer", str(TOKENIZER), "--max-length", "999"], "the model takes 128 tokens"),
        (
            "sentence_embedding",
            ["--tokenizer", str(TOKENIZER), "--default-prompt", "q"],
            "q: the model has no prompts; leave it out",
        ),
        ("sentence_embedding", ["--tokenizer", str(TOKENIZER), "--max-length", "0"], "--max-length 0: allowed: 1 or"),
        ("sentence_embedding", ["--tokenizer", str(TOKENIZER), "--max-length", "2"], "2 tokens of its own around"),
        ("sentence_embedding", ["--tokenizer", str(TOKENIZER), "--port", "70000"], "--port 70000: allowed: 1 to 65535"),
        (
            "sentence_embedding",
            ["--tokenizer", str(TOKENIZER), "--processes", "0"],
            "--processes 0: allowed: 1 or more",
        ),
        ("sentence_embedding", ["--tokenizer", str(TOKENIZER), "--contexts", "0"], "--contexts 0: allowed: 1 or more"),
        (
            "sentence_embedding",
            ["--tokenizer", str(TOKENIZER), "--task", "rerank"],
            "--task rerank: 'sentence_embedding'",
        ),
        ("scores", ["--tokenizer", str(TOKENIZER), "--task", "embed"], "--task embed: 'scores'"),
        ("logits", ["--tokenizer", str(TOKENIZER), "--task", "rerank"], "--task rerank: 'logits'"),
    ],
)
def test_what_cannot_be_served_is_one_paragraph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, options: list[str], words: str
) -> None:
    model = write_model(tmp_path / "model.onnx", output)
    assert cli.main(["serve", str(model), "--port", "0", *options]) == 1
    assert words in " ".join(capsys.readouterr().err.split())


def swap_letters(file: Path) -> None:
    """Replaces a tokenizer by one in which the words of the vocabulary have each other's ids."""
    settings = json.loads(file.read_bytes())
    vocabulary = settings["model"]["vocab"]
    words = sorted(word for word in vocabulary if word.isalpha())
    ids = [vocabulary[word] for word in words]
    vocabulary.update(zip(words, ids[1:] + ids[:1], strict=True))
    other = file.with_suffix(".other")
    other.write_text(json.dumps(settings), "utf-8")
    other.replace(file)


@pytest.mark.parametrize("change", [swap_letters, Path.unlink], ids=["another file", "no file"])
def test_a_front_end_that_is_started_again_has_the_tokenizer_that_was_checked(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    model = write_model(tmp_path / "model.onnx", text=EMBEDDER.to_dict())
    wanted = unit(expected_rows(TEXTS))
    with Server(model, "--processes", "1") as server:
        (pid,) = server.front_ends
        change(tokenizer_path(model))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in server.front_ends and len(server.front_ends) == 1)
        status, vectors = post(server, "/embed", inputs=TEXTS)
        assert status == 200
        np.testing.assert_allclose(vectors, wanted, atol=TOLERANCE)
        tokens = post(server, "/tokenize", inputs=TEXTS[1])[1]
        assert [token["id"] for token in tokens[0]] == Tokenizer.from_file(str(TOKENIZER)).encode(TEXTS[1]).ids


def test_a_front_end_that_cannot_start_says_why(embedder_file: Path) -> None:
    with Session(embedder_file) as session:
        served = describe(embedder_file, session.metadata, Choices())
    served = replace(served, tokenizer=replace(served.tokenizer, content=b"{"))
    front_end = FrontEnd(served, ServeOptions(), None, Budget(), at=3, threads=1)
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket() as listener:
        process = multiprocessing.get_context("spawn").Process(target=main, args=(front_end, listener, theirs, None))
        process.start()
        process.join(MOST_END_S)
        (frame,) = wire.Frames().feed(ours.recv(4096))
    assert process.exitcode == CANNOT_START
    assert frame.kind == wire.LOG
    assert b"front-end 3 cannot start" in bytes(frame.payload)
    assert b"not a tokenizer file" in bytes(frame.payload)


def test_a_front_end_that_stands_still_is_replaced(embedder_file: Path) -> None:
    with Server(embedder_file, "--processes", "2") as server:
        pids = server.front_ends
        os.kill(pids[0], signal.SIGSTOP)
        wait_until(lambda: len(server.front_ends) == 2 and pids[0] not in server.front_ends)
        for _ in range(10):
            assert post(server, "/embed", inputs=TEXTS)[0] == 200
        assert "did not answer for 5 s and is started again" in server.end()


def test_health_tells_of_a_model_that_stands_still(embedder_file: Path) -> None:
    with Server(embedder_file, "--processes", "1") as server:
        assert get(server, "/health")[0] == 200
        os.kill(server.process.pid, signal.SIGSTOP)
        start = time.monotonic()
        try:
            time.sleep(1.1)  # the last answer counts until then
            assert get(server, "/health")[0] == 503
            assert time.monotonic() - start < MOST_TOLD_S
            status, answer = post(server, "/embed", inputs=TEXTS)
            assert (status, answer["error_type"]) == (503, "Unhealthy")
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        wait_until(lambda: post(server, "/embed", inputs=TEXTS)[0] == 200)
        assert get(server, "/health")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_a_signal_to_all_processes_while_they_start(embedder_file: Path, pause_s: float, number: int) -> None:
    """Ctrl-C in a terminal and systemd's stop also reach the front-end, even while it is still being set up."""
    command = [sys.executable, "-m", "padfree", "serve", str(embedder_file), "--port", "0", "--processes", "1"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's job may ignore it
    ) as process:
        wait_until(lambda: find_spawned(process.pid))
        time.sleep(pause_s)
        os.killpg(process.pid, number)
        try:
            _, stderr = process.communicate(timeout=MOST_END_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.2])
def test_more_signals_than_two_change_nothing(embedder_file: Path, pause_s: float, number: int) -> None:
    with Server(embedder_file, "--processes", "2") as server:
        until = time.monotonic() + MOST_END_S
        while server.process.poll() is None:
            assert time.monotonic() < until
            server.process.send_signal(number)
            time.sleep(pause_s)
        stderr = server.log()
        assert server.process.returncode == 0
        assert "Traceback" not in stderr
        assert "Fatal" not in stderr
