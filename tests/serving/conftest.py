# SPDX-License-Identifier: Apache-2.0
"""Servers of small models, one for each task, for all tests of this folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from padfree.contract.texts import PAIRS, SENTENCES, SPARSE, TextInfo

from tests.support.folders import TOKENIZER
from tests.support.served_models import Server, write_model
from tests.support.skips import LeftOut, without

DIGEST = hashlib.sha256(TOKENIZER.read_bytes()).hexdigest()
EMBEDDER = TextInfo(SENTENCES, DIGEST, prompts={"query": "query: ", "document": "passage: "}, pooling=("mean",))
SPARSE_ENCODER = TextInfo(SPARSE, DIGEST, pooling=("splade",))
RERANKER = TextInfo(PAIRS, DIGEST, labels=("LABEL_0",), activation="identity")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LeftOut | None:
    """Without the extra `serve` nothing here can be imported."""
    reason = without("starlette")
    return None if reason is None else LeftOut.of(module_path, parent, reason)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the models lie in."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def embedder_file(folder: Path) -> Path:
    """A model of sentence vectors, with its tokenizer."""
    return write_model(folder / "embedder.onnx", text=EMBEDDER.to_dict())


@pytest.fixture(scope="session")
def embedder(embedder_file: Path) -> Iterator[Server]:
    """Serves the model of sentence vectors."""
    with Server(embedder_file, "--processes", "2") as server:
        yield server


@pytest.fixture(scope="session")
def reranker(folder: Path) -> Iterator[Server]:
    """Serves a model that gives one logit per pair."""
    file = write_model(folder / "reranker.onnx", "scores", 1, RERANKER.to_dict())
    with Server(file, "--processes", "1", "--long-texts", "refuse") as server:
        yield server


@pytest.fixture(scope="session")
def sparse_encoder(folder: Path) -> Iterator[Server]:
    """Serves a model of vectors with zeros in them."""
    file = write_model(folder / "sparse.onnx", text=SPARSE_ENCODER.to_dict(), positive=True)
    with Server(file, "--processes", "1") as server:
        yield server


@pytest.fixture(scope="session")
def classifier(folder: Path) -> Iterator[Server]:
    """Serves a model of three classes without a folder's description."""
    file = write_model(folder / "classifier.onnx", "logits", 3)
    with Server(file, "--processes", "1", "--tokenizer", str(TOKENIZER)) as server:
        yield server
