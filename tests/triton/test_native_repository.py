# SPDX-License-Identifier: Apache-2.0
"""The repository that `padfree triton --backend padfree` writes, in the real server with a stand-in for the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.triton import ServingOptions, write_repository

from tests.support.native_triton import VOCABULARY, hidden, metadata, pooled_answer, write_plan
from tests.support.triton_server import TritonServer

from .calls import call, call_all, texts
from .native import OUTPUTS, assert_right, random_requests, tensors
from .served_kinds import TOKENIZER

pytestmark = pytest.mark.needs_triton


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan's repository with the text ensemble, changed to run on a CPU."""
    folder = tmp_path_factory.mktemp("written")
    # For a server that is no NGC image no Dockerfile and archive are written, which would need libraries for a GPU.
    engine = {**metadata()["engine"], "tensorrt": "10.99.0"}
    plan = write_plan(folder / "model.plan", engine=engine, coverage={}, hidden_size=2, num_layers=1)
    options = ServingOptions("bert", backend="padfree", server_tensorrt="10.99.0", tokenizer=TOKENIZER)
    repository = write_repository(plan, folder / "models", options).folder
    config = repository / "bert" / "config.pbtxt"
    config.write_text(config.read_text("utf-8").replace("KIND_GPU", "KIND_CPU"), encoding="utf-8")
    return repository


@pytest.fixture(scope="module")
def served(
    installed: Path, native_backends: Path, written: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Serves the repository."""
    options = f"--backend-directory={native_backends}"
    with TritonServer(installed, [written], tmp_path_factory.mktemp("served"), options) as running:
        yield running


def test_answers(served: TritonServer) -> None:
    requests = random_requests(20, 100)
    answers = call_all(served, "http", "bert", [tensors(each) for each in requests], OUTPUTS)
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences)


def test_texts_of_different_lengths_in_one_request(served: TritonServer) -> None:
    from tokenizers import Tokenizer

    words = ["how are you", "a much longer text that goes on", "well"]
    answer = call(served, "http", "bert_text", {"text": texts(*words)}, OUTPUTS)
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    for at, word in enumerate(words):
        ids = np.array(tokenizer.encode(word).ids, np.int32)
        assert ids.max() < VOCABULARY
        np.testing.assert_array_equal(answer["pooled"][at], pooled_answer(ids, np.zeros_like(ids)))
        np.testing.assert_array_equal(answer["hidden"][at, : len(ids)], hidden(ids, np.zeros_like(ids)))
