# SPDX-License-Identifier: Apache-2.0
"""Taggers: /tag and / answer as padfree.Model.tag, whose own tests compare it with transformers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import padfree
import pytest
from padfree.builder import cli
from padfree.runtime.answers.tags import TaggedSpan
from padfree.serving.http.tags import Tags

from tests.support.classifiers import small_folder
from tests.support.http_requests import get, post
from tests.support.served_models import Server

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXTS = ["word1 word2  word3 word9", "word50", "", "word7 word8 word40 word41 word42 word43 word44 word45"]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def ner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("tagger") / "ner", "token", LABELS)


@pytest.fixture(scope="module")
def tagger(ner: Path) -> Iterator[Server]:
    with Server(ner, "--processes", "1") as server:
        yield server


@pytest.fixture(scope="module")
def model(ner: Path) -> Iterator[padfree.Model]:
    with padfree.Model(ner) as opened:
        yield opened


def as_json(words: list[TaggedSpan]) -> list[dict[str, Any]]:
    return [{**asdict(word), "score": pytest.approx(word.score, abs=TOLERANCE)} for word in words]


@pytest.mark.parametrize("every_word", [False, True])
def test_words_have_labels_and_positions(tagger: Server, model: padfree.Model, every_word: bool) -> None:
    status, answer = post(tagger, "/tag", inputs=TEXTS, words=every_word)
    assert status == 200
    assert any(answer)
    assert answer == [as_json(words) for words in model.tag(TEXTS, words=every_word)]
    for text, words in zip(TEXTS, answer, strict=True):
        assert all(text[word["start"] : word["end"]] == word["text"] for word in words)


def test_a_text_by_itself_has_one_list(tagger: Server, model: padfree.Model) -> None:
    assert post(tagger, "/tag", inputs=TEXTS[0], words=True) == (200, as_json(model.tag(TEXTS[0], words=True)))


def test_callers_at_one_moment_get_their_own_words(tagger: Server, model: padfree.Model) -> None:
    asked = [[f"word{at} word{(7 * at) % 60}"] * (1 + at % 5) for at in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda texts: post(tagger, "/tag", inputs=texts, words=True), asked))
    for texts, (status, answer) in zip(asked, found, strict=True):
        assert status == 200
        assert answer == [as_json(words) for words in model.tag(texts, words=True)]


def test_the_root_answers_hugging_faces_client(tagger: Server, model: padfree.Model) -> None:
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(base_url=tagger.url)
    for strategy, every_word in (("simple", False), ("none", True)):
        found = client.token_classification(TEXTS[0], aggregation_strategy=strategy)
        wanted = model.tag(TEXTS[0], words=every_word)
        assert [(one.word, one.start, one.end) for one in found] == [
            (word.text, word.start, word.end) for word in wanted
        ]
        names = [one.entity if every_word else one.entity_group for one in found]
        assert names == [word.label for word in wanted]


def test_long_texts_keep_the_words_that_the_model_reads(tagger: Server, model: padfree.Model) -> None:
    text = "word1 " * 200
    status, words = post(tagger, "/tag", inputs=text, words=True)
    assert (status, len(words)) == (200, 38)
    assert words == as_json(model.tag(text, words=True))
    status, error = post(tagger, "/tag", inputs=text, truncate=False)
    assert (status, error["error_type"]) == (413, "Validation")


def test_many_texts_come_in_parts(tagger: Server, model: padfree.Model) -> None:
    texts = [f"{'word1 word2 ' * 10}word{at % 60}" for at in range(400)]
    status, answer = post(tagger, "/tag", inputs=texts)
    assert status == 200
    assert answer == [as_json(words) for words in model.tag(texts)]


@pytest.mark.parametrize(
    ("path", "fields", "status", "said"),
    [
        ("/tag", {"inputs": []}, 422, "empty"),
        ("/tag", {"inputs": [[5, 6]]}, 422, "ids"),
        ("/tag", {"inputs": 7}, 422, "a number"),
        ("/tag", {"inputs": "a", "words": "yes"}, 422, "'words'"),
        ("/tag", {}, 422, "'inputs' is missing"),
        ("/", {"inputs": "a", "parameters": {"aggregation_strategy": "max"}}, 422, "simple, none"),
        ("/", {"inputs": "a", "parameters": []}, 422, "'parameters'"),
        ("/embed", {"inputs": "a"}, 424, "a token classification model and answers /tag"),
        ("/predict", {"inputs": "a"}, 424, "answers /tag"),
    ],
)
def test_what_is_refused(tagger: Server, path: str, fields: dict[str, Any], status: int, said: str) -> None:
    found, answer = post(tagger, path, **fields)
    assert found == status
    assert said in answer["error"]


@pytest.mark.parametrize("ends", ["read", "left"])
def test_rows_of_answers_that_are_not_read_yet_are_counted(ends: str) -> None:
    """While a process holds too many bytes of rows, it refuses further requests."""

    async def aside(work: Any) -> bytes:
        return bytes(work())

    async def read() -> tuple[int, int]:
        calls, rows = SimpleNamespace(row_bytes=0), np.zeros((6, 5), np.float32)
        tags = Tags(cast(Any, calls), cast(Any, SimpleNamespace(aside=aside)))
        parts = tags._parts(["a" * 10_000] * 3, rows, lambda _: b"[]", single=False)
        found = [await anext(parts)]
        held = calls.row_bytes
        if ends == "read":
            found += [part async for part in parts]
            assert b"".join(found) == b"[[],[],[]]"
        else:
            await parts.aclose()  # type: ignore[attr-defined]
        return held, calls.row_bytes

    assert asyncio.run(read()) == (6 * 5 * 4, 0)


def test_info_has_the_labels(tagger: Server) -> None:
    classes = get(tagger, "/info")[1]["model_type"]["token_classifier"]["id2label"]
    assert list(classes.values()) == list(LABELS)


def test_other_models_say_what_they_answer(embedder: Server) -> None:
    status, answer = post(embedder, "/tag", inputs="a")
    assert status == 424
    assert "/embed" in answer["error"]


def test_a_rewritten_file_is_served_as_its_folder_is(ner: Path, model: padfree.Model, tmp_path: Path) -> None:
    packed = tmp_path / "ner.onnx"
    assert cli.main(["optimize", str(ner), "-o", str(packed)]) == 0
    with Server(packed, "--processes", "1") as server:
        status, answer = post(server, "/tag", inputs=TEXTS)
    assert status == 200
    assert answer == [as_json(words) for words in model.tag(TEXTS)]


def test_a_model_that_says_nothing_of_words_is_told_to_be_one(tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "ner", "token", LABELS)
    packed = tmp_path / "ner.onnx"
    assert cli.main(["optimize", str(next(folder.rglob("*.onnx"))), "-o", str(packed)]) == 0
    tokenizer = ["--tokenizer", str(folder / "tokenizer.json"), "--processes", "1"]
    with pytest.raises(RuntimeError) as error:
        Server(packed, *tokenizer)
    (advice,) = re.findall(r"pass (--task \w+)", " ".join(str(error.value).split()))
    with Server(packed, *tokenizer, *advice.split()) as server:
        status, answer = post(server, "/tag", inputs=TEXTS[0], words=True)
    assert status == 200
    assert {word["label"] for word in answer} <= {f"LABEL_{at}" for at in range(len(LABELS))}, json.dumps(answer)
