# SPDX-License-Identifier: Apache-2.0
"""Every file in examples/ runs as its users run it, on the CPU, with a small folder instead of theirs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.cli import main
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime import Session
from padfree.runtime.texts import TextReader

from tests.support.folders import write_folder
from tests.support.served_models import Server, wait_until
from tests.support.skips import without
from tests.support.triton_server import TritonServer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
README = (EXAMPLES / "README.md").read_text("utf-8")
MOST_LINES = 60
FOUND = re.compile(r"-?\d\.\d{3} (The parcel|Our kitchen|Passwords) .*\.\n")


def needs(*modules: str) -> None:
    reason = without(*modules)
    if reason is not None:
        pytest.skip(reason)


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    modules = [("Pooling", {"pooling_mode_mean_tokens": True}), ("Normalize", {})]
    return write_folder(tmp_path_factory.mktemp("examples") / "minilm", modules=modules)


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """The folder's model, rewritten, with its tokenizer beside it."""
    file = folder.parent / "minilm.onnx"
    assert main(["optimize", str(folder), "-o", str(file), "--no-verify"]) == 0
    return file


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Server]:
    needs("starlette", "uvicorn")
    with Server(model, "--processes", "1") as server:
        yield server


def test_every_example_is_listed_and_short() -> None:
    files = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert sorted(re.findall(r"^\| \[`(\w+\.py)`\]", README, re.MULTILINE)) == files
    for file in files:
        assert len((EXAMPLES / file).read_text("utf-8").splitlines()) < MOST_LINES, file


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("langchain_search.py", ("langchain_openai",)),
        ("llama_index_search.py", ("llama_index.core", "llama_index.embeddings.openai")),
    ],
)
def test_clients_of_padfree_serve(name: str, modules: tuple[str, ...], served: Server) -> None:
    needs(*modules)
    assert FOUND.fullmatch(run(name, f"{served.url}/v1"))


def test_fastapi_app(model: Path, tmp_path: Path) -> None:
    needs("fastapi", "uvicorn")
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_app:app", "--port", "0"]
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env={**os.environ, "PADFREE_MODEL": str(model)}, stderr=stream, stdout=stream
        )

    def address() -> str:
        assert process.poll() is None, log.read_text("utf-8")
        line = re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text("utf-8"))
        return line[1] if line else ""

    def post(texts: list[str]) -> list[list[float]]:
        body = json.dumps({"texts": texts}).encode()
        request = urllib.request.Request(f"{address()}/vectors", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            vectors: list[list[float]] = json.load(reply)
            return vectors

    try:
        wait_until(address)
        texts = ["rain", "a cat sat on the mat " * 300]
        with Session(model) as session:
            tokens = TextReader(model, session.metadata).read(texts)
            expected = np.stack(session.run(tokens.request)["sentence_embedding"])
        np.testing.assert_allclose(post(texts), expected, atol=1e-5)
    finally:
        process.terminate()
        process.wait(30)
    assert process.returncode in (0, -15)


@pytest.mark.needs_triton
def test_triton_client(model: Path, tmp_path: Path) -> None:
    repository = write_repository(model, tmp_path / "repository", ServingOptions("minilm")).folder
    with TritonServer(Path(os.environ["PADFREE_TRITON"]), [repository], tmp_path) as server:
        assert FOUND.fullmatch(run("triton_client.py", server.url("grpc"), "minilm"))
