# SPDX-License-Identifier: Apache-2.0
"""Texts that are cut are reported in a field, a header, and a line of the log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from padfree.contract.texts import LEFT, PAIRS, RIGHT, SENTENCES, TextInfo
from padfree.serving.http.cuts import CutLog
from tokenizers import Tokenizer

from tests.support.folders import TOKENIZER
from tests.support.http_requests import post, whole
from tests.support.served_models import Server, expected_rows, unit, write_model

DIGEST = hashlib.sha256(TOKENIZER.read_bytes()).hexdigest()
MOST = 8
LONG = "a cat and a mat and rain and the cat again"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def cut_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves a model whose texts lose their beginnings."""
    text = TextInfo(SENTENCES, DIGEST, max_length=MOST, pooling=("mean",), truncation_side=LEFT)
    file = write_model(tmp_path_factory.mktemp("left") / "left.onnx", text=text.to_dict())
    with Server(file, "--processes", "1") as server:
        yield server


def test_texts_that_were_cut_are_named(cut_left: Server) -> None:
    headers, body = whole(cut_left, "/v1/embeddings", input=["a cat", LONG, "rain", LONG])
    assert body["truncated"] == [1, 3]
    assert headers["x-truncated-texts"] == "2"
    headers, body = whole(cut_left, "/v1/embeddings", input=["a cat"])
    assert "truncated" not in body
    assert headers["x-truncated-texts"] == "0"
    headers, _ = whole(cut_left, "/embed", inputs=[LONG])
    assert headers["x-truncated-texts"] == "1"


def test_the_beginnings_are_cut_where_the_tokenizer_says_so(cut_left: Server) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.enable_truncation(MOST, direction="left")
    kept = tokenizer.decode(tokenizer.encode(LONG).ids)
    found = np.array(post(cut_left, "/embed", inputs=[LONG])[1])
    np.testing.assert_allclose(found, unit(expected_rows([kept])), atol=TOLERANCE)
    assert not np.allclose(found, unit(expected_rows([" ".join(LONG.split()[: MOST - 2])])), atol=TOLERANCE)
    status, answer = post(cut_left, "/embed", inputs=LONG, truncation_direction="right")
    assert (status, answer["error"]) == (422, "'truncation_direction' is 'right', allowed: left, Left")


def test_the_log_tells_of_cut_texts(tmp_path: Path) -> None:
    text = TextInfo(SENTENCES, DIGEST, max_length=MOST, pooling=("mean",))
    with Server(write_model(tmp_path / "cut.onnx", text=text.to_dict()), "--processes", "1") as server:
        for _ in range(20):
            assert post(server, "/embed", inputs=LONG)[0] == 200
        lines = [line for line in server.end().splitlines() if "tokens that lost their ends" in line]
    assert lines
    assert len(lines) < 10


class Clock:
    """The clock of an event loop, which a test moves, and the calls that are scheduled."""

    def __init__(self) -> None:
        self.now, self._later = 0.0, list[tuple[float, Callable[[], object]]]()

    def call_later(self, delay: float, call: Callable[[], object]) -> object:
        """Schedules a call, as an event loop does."""
        self._later.append((self.now + delay, call))
        return object()

    def move_to(self, at: float) -> None:
        """Moves the clock, and makes all calls that are due until then, in order."""
        while due := [item for item in self._later if item[0] <= at]:
            first = min(due, key=lambda item: item[0])
            self._later.remove(first)
            self.now = first[0]
            first[1]()
        self.now = at


def test_the_log_has_one_line_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = Clock(), list[tuple[float, str]]()
    monkeypatch.setattr("padfree.serving.http.cuts.asyncio.get_running_loop", lambda: clock)
    served: Any = SimpleNamespace(tokenizer=SimpleNamespace(truncation_side=RIGHT), max_length=MOST)
    log = CutLog(served, lambda line: lines.append((clock.now, line)))
    for tenth in range(25):  # 0.0 to 2.4 s, without a pause
        clock.move_to(tenth / 10)
        log.add(2)
    clock.move_to(60.0)
    log.add(1)
    clock.move_to(90.0)
    counts = [int(line.partition("lost their ends: ")[2].partition(";")[0]) for _, line in lines]
    assert [at for at, _ in lines] == [0.0, 1.0, 2.0, 3.0, 60.0]
    assert sum(counts) == 51
    assert counts[0] == 2
    assert counts[-1] == 1


def test_a_model_of_pairs_scores_no_single_texts(tmp_path: Path) -> None:
    text = TextInfo(PAIRS, DIGEST, labels=("LABEL_0",), activation="identity")
    with Server(write_model(tmp_path / "pairs.onnx", "scores", 1, text.to_dict()), "--processes", "1") as server:
        status, answer = post(server, "/predict", inputs=[["a cat"], ["a", "mat"]])
        assert status == 422
        assert answer["error"].startswith("'inputs' has a text by itself, and the model scores pairs")
        assert post(server, "/predict", inputs=[["a", "mat"]])[0] == 200
