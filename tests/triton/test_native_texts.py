# SPDX-License-Identifier: Apache-2.0
"""The native backend's tokenizer in the real server gives the answers and errors of the Python backend's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime.triton import TokenizerParameters
from padfree.runtime.triton.answers import Failure, TritonRequest, never
from padfree.runtime.triton.texts import OUTPUTS, TextTokenizer

from tests.support.native_triton import metadata, write_plan
from tests.support.random_texts import random_text
from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS, Tensors, call_all, refusal, texts
from .served_kinds import TOKENIZER, VOCABULARY

pytestmark = pytest.mark.needs_triton

MOST = 16
KINDS: dict[str, dict[str, Any]] = {"cuts": {}, "refuses": {"long_texts": "refuse"}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one model that cuts long texts and one that refuses them."""
    folder = tmp_path_factory.mktemp("native_texts")
    engine = {**metadata()["engine"], "tensorrt": "10.99.0"}
    plan = write_plan(folder / "model.plan", engine=engine, coverage={}, hidden_size=2, num_layers=1)
    for name, changes in KINDS.items():
        options = ServingOptions(
            name, backend="padfree", server_tensorrt="10.99.0", tokenizer=TOKENIZER, max_length=MOST, **changes
        )
        tokenizer = write_repository(plan, folder / "models", options).tokenizer
        assert tokenizer is not None
        assert tokenizer.compiled
    for config in (folder / "models").glob("*/config.pbtxt"):
        config.write_text(config.read_text("utf-8").replace("KIND_GPU", "KIND_CPU"), encoding="utf-8")
        assert 'backend: "python"' not in config.read_text("utf-8")
    return folder / "models"


@pytest.fixture(scope="module")
def text_server(
    installed: Path, native_backends: Path, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Serves the repository of the two models."""
    options = ("--model-control-mode=explicit", "--load-model=*", f"--backend-directory={native_backends}")
    with TritonServer(installed, [models], tmp_path_factory.mktemp("server"), *options) as running:
        yield running


def in_python(kind: str) -> TextTokenizer:
    return TextTokenizer(TOKENIZER, TokenizerParameters(MOST, vocabulary=VOCABULARY, **KINDS[kind]))


def requests() -> list[dict[str, Any]]:
    rng = np.random.default_rng(11)
    batch: list[dict[str, Any]] = []
    for _ in range(300):
        count = int(rng.integers(1, 5))
        batch.append({"text": texts(*(random_text(rng) for _ in range(count)))})
        if rng.random() < 0.4:
            batch[-1]["text_pair"] = texts(*(random_text(rng) for _ in range(count)))
        if rng.random() < 0.3:
            batch[-1]["truncate"] = rng.random((count, 1)) < 0.5
    return batch


BAD: list[Tensors] = [
    {"text": texts("fine", b"a \xff")},
    {"text": texts("fine"), "text_pair": texts(b"\xed\xa0\x80")},
    {"text_pair": texts("alone")},
    {"text": texts("one", "x " * 40_000)},
    {"text": texts(*["x" * 65_600] * 16)},
    {"text": texts(*["! " * 30_000] * 2), "truncate": np.array([[True], [False]])},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_and_errors_are_those_of_the_python_backend(
    text_server: TritonServer, protocol: str, kind: str
) -> None:
    everything: list[Tensors] = [
        *requests(),
        *BAD,
        {"text": texts("")},
        {"text": texts("", ""), "text_pair": texts("", "word " * 90)},
    ]
    python = in_python(kind)
    refused = 0
    for tensors, answer in zip(
        everything, call_all(text_server, protocol, f"{kind}_tokenizer", everything, OUTPUTS), strict=True
    ):
        expected = python.answer([python.read(TritonRequest(tensors, OUTPUTS, never))])[0]
        if isinstance(expected, Failure):
            refused += 1
            assert isinstance(answer, Exception), tensors
            message = re.sub(r"\(.*codec.*\)", "", expected.message)  # Python's codec says where the bytes are
            assert re.sub(r"\(from byte \d+ on\)", "", str(answer)).endswith(message), (str(answer), expected.message)
            continue
        assert isinstance(answer, dict), answer
        for name, values in expected.items():
            np.testing.assert_array_equal(answer[name], values)
    assert refused >= len(BAD)


def test_texts_that_were_cut_are_counted(text_server: TritonServer) -> None:
    def count() -> float:
        page = text_server.get("metrics", "metrics")
        found = re.search(r'^padfree_truncated_texts_total\{.*model="cuts_tokenizer".*\} (\S+)$', page, re.M)
        assert found, page
        return float(found[1])

    before = count()
    call_all(text_server, "http", "cuts_tokenizer", [{"text": texts("word " * 90, "word", "word " * 80)}], OUTPUTS)
    assert count() == before + 2


def test_damaged_tokenizers_are_refused(text_server: TritonServer, models: Path) -> None:
    folder = models
    config = (folder / "cuts_tokenizer" / "config.pbtxt").read_text("utf-8")
    content = json.loads((folder / "cuts_tokenizer" / "1" / "tokenizer.compiled.json").read_text("utf-8"))
    for name, change, message in (
        ("no_json", None, r"damaged \(the model configuration is no JSON"),
        ("newer", {"format": 2}, r"damaged \(format '2', allowed: 1\)"),
        ("frame", {"single": {}}, r"damaged \(what stands around texts does not fit them\)"),
        (
            "ids",
            {"vocabulary": {**content["vocabulary"], "more": 4000}},
            r"has ids up to 4000 \('more'\), 'padfree_voc",
        ),
    ):
        version = folder / name / "1"
        version.mkdir(parents=True)
        text = '{"format": 1' if change is None else json.dumps({**content, **change}, ensure_ascii=False)
        (version / "tokenizer.compiled.json").write_text(text, encoding="utf-8")
        (folder / name / "config.pbtxt").write_text(config.replace("cuts_tokenizer", name), encoding="utf-8")
        assert re.search(message, refusal(text_server, name)), name
