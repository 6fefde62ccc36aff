# SPDX-License-Identifier: Apache-2.0
"""Beginning and end of a server: what was taken is answered, and processes that die are replaced."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from padfree.builder import cli

from tests.support.folders import TOKENIZER, write_folder
from tests.support.http_requests import get, post
from tests.support.served_models import Server, expected, unit, wait_until, write_model

TEXTS = ["the cat sat on the mat", "a", "rain, rain, and more of it"]
TOLERANCE = 1e-5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_under_way_are_answered_before_the_end(embedder_file: Path, number: int) -> None:
    wanted = unit(expected(TEXTS))
    with Server(embedder_file, "--processes", "2") as server:
        answered, refused, wrong = [0] * 8, [0] * 8, []

        def send(at: int) -> None:
            while not refused[at]:
                try:
                    status, vectors = post(server, "/embed", inputs=TEXTS)
                except ConnectionError:
                    refused[at] += 1  # before a byte of an answer came: nothing was taken
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


def test_the_log_has_a_line_a_second_at_most(embedder_file: Path) -> None:
    start = time.monotonic()
    with Server(embedder_file, "--processes", "2") as server:
        for _ in range(200):
            assert post(server, "/embed", inputs=[7])[0] == 422
        lines = [line for line in server.end().splitlines() if line.strip()]
    assert 1 <= len(lines) <= time.monotonic() - start + 1  # the last one comes at the end
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
        ("sentence_embedding", ["--tokenizer", str(TOKENIZER), "--default-prompt", "q"], "choose one of them"),
    ],
)
def test_what_cannot_be_served_is_one_paragraph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, options: list[str], words: str
) -> None:
    model = write_model(tmp_path / "model.onnx", output)
    assert cli.main(["serve", str(model), "--port", "0", *options]) == 1
    assert words in " ".join(capsys.readouterr().err.split())
