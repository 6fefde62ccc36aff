# SPDX-License-Identifier: Apache-2.0
"""A tritonserver with a generated repository: the demo's BERT as a rewritten .onnx file, and the text ensemble."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.triton import ServingOptions, write_repository
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session

from tests.support.native_triton import backend_directory, write_model
from tests.support.triton_server import TritonServer

from .served_kinds import TOKENIZER, TRUNCATED_TO


@pytest.fixture(scope="session")
def installed() -> Path:
    """The folder that install_server.py put the server into."""
    return Path(os.environ["PADFREE_TRITON"])


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed model: two layers, hidden size 64, 512 positions."""
    file = tmp_path_factory.mktemp("model") / "packed.onnx"
    save_model(rewrite(DEMO_DATA / "bert_tiny.onnx", verify=False).model, file)
    return file


@pytest.fixture(scope="session")
def session(model_file: Path) -> Iterator[Session]:
    """Runs the model without a server, to compare answers with."""
    with Session(model_file) as opened:
        yield opened


@pytest.fixture(scope="session")
def repository(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model `bert`, in two instances, with a text ensemble that cuts texts after TRUNCATED_TO tokens."""
    options = ServingOptions("bert", max_queue_delay_us=1000, instances=2, tokenizer=TOKENIZER, max_length=TRUNCATED_TO)
    return write_repository(model_file, tmp_path_factory.mktemp("models") / "bert", options).folder


@pytest.fixture(scope="session")
def strict_repository(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model `strict`, with a text ensemble that refuses texts of more than TRUNCATED_TO tokens."""
    options = ServingOptions("strict", tokenizer=TOKENIZER, max_length=TRUNCATED_TO, long_texts="refuse")
    return write_repository(model_file, tmp_path_factory.mktemp("models") / "strict", options).folder


@pytest.fixture(scope="session")
def other_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that is empty at the start; tests put models there and load them."""
    return tmp_path_factory.mktemp("other")


@pytest.fixture(scope="session")
def server(
    installed: Path,
    repository: Path,
    strict_repository: Path,
    other_repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:
    """Serves all three repositories; models can be loaded and unloaded, and may ask for the response cache."""
    caches = installed / "server" / "pytriton" / "tritonserver" / "caches"
    options = ("--model-control-mode=explicit", "--load-model=*", "--cache-config=local,size=1048576")
    options += (f"--cache-directory={caches}",)
    repositories = [repository, strict_repository, other_repository]
    with TritonServer(installed, repositories, tmp_path_factory.mktemp("server"), *options) as running:
        yield running


@pytest.fixture(scope="session")
def native_backends(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For `--backend-directory`: the native backend with a stand-in for its engine, and the Python backend."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the stand-in of an engine; install it: apt-get install g++")
    folder = backend_directory(compiler, tmp_path_factory.mktemp("backends"))
    (folder / "python").symlink_to(installed / "server" / "pytriton" / "tritonserver" / "backends" / "python")
    return folder


@pytest.fixture(scope="session")
def native_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository for the native backend, with one model; tests put further ones there and load them."""
    repository = tmp_path_factory.mktemp("native")
    write_model(repository, "plain", plan="delay_us 300")
    return repository


@pytest.fixture(scope="session")
def native_server(
    installed: Path, native_backends: Path, native_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """Serves the native backend's repository."""
    options = ("--model-control-mode=explicit", "--load-model=*", f"--backend-directory={native_backends}")
    with TritonServer(installed, [native_repository], tmp_path_factory.mktemp("native_server"), *options) as running:
        yield running
