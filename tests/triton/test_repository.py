# SPDX-License-Identifier: Apache-2.0
"""A server polls a repository under load, while models and versions are added; its folder stays the same."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from padfree.builder.triton import ServingOptions, write_repository
from padfree.onnx_tools import load_model, save_model
from padfree.runtime import Session

from tests.support.triton_server import TritonServer

from .calls import Answer, call, call_all, rows, texts
from .processes import wait_until
from .served_kinds import OUTPUTS, TOKENIZER, TOLERANCE, assert_right, random_sequences

pytestmark = pytest.mark.needs_triton

WITHIN_S = 40.0  # the server polls once per second
POLLED = ("--model-control-mode=poll", "--repository-poll-secs=1")
ERROR = re.compile(r"^.*(?:failed to load|Poll failed|failed to poll).*$", re.MULTILINE)


def with_larger_bias(model: Path, file: Path) -> Path:
    """Writes the model with other answers, from a larger bias of its pooler."""
    changed = load_model(model)
    for tensor in changed.graph.initializer:
        if "pooler" in tensor.name and tensor.dims == [64]:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(0.5), tensor.name))
    assert changed != load_model(model)
    save_model(changed, file)
    return file


def ready_versions(server: TritonServer, model: str) -> list[str]:
    states = re.findall(
        r'\{"name":"([^"]+)","version":"(\d+)","state":"READY"', server.post("v2/repository/index").replace(" ", "")
    )
    return [version for name, version in states if name == model]


def test_models_and_versions_under_load(installed: Path, model_file: Path, session: Session, tmp_path: Path) -> None:
    other_file = with_larger_bias(model_file, tmp_path / "other.onnx")
    repository = tmp_path / "repository"
    options = ServingOptions("bert", tokenizer=TOKENIZER)
    write_repository(model_file, repository, options)
    inode = repository.stat().st_ino
    sequences = random_sequences(5, 20)
    stop = threading.Event()
    answers: list[Answer] = []

    def load(server: TritonServer) -> None:
        while not stop.is_set():
            answers.extend(call_all(server, "grpc", "bert", [rows([row]) for row in sequences], OUTPUTS))

    with (
        Session(other_file) as other,
        TritonServer(installed, [repository], tmp_path, *POLLED) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        loading = pool.submit(load, server)
        try:
            write_repository(model_file, repository, ServingOptions("second"))
            wait_until(lambda: ready_versions(server, "second") == ["1"], "the second model", WITHIN_S)
            assert ready_versions(server, "bert") == ["1"]
            before = call(server, "http", "bert_text", {"text": texts("the first version")}, OUTPUTS)

            assert write_repository(other_file, repository, options).version == 2
            for name in ("bert", "bert_tokenizer", "bert_text"):
                wait_until(lambda name=name: ready_versions(server, name) == ["2"], f"version 2 of {name}", WITHIN_S)
            after = call(server, "http", "bert_text", {"text": texts("the first version")}, OUTPUTS)
        finally:
            stop.set()
        loading.result()
        assert_right(call(server, "grpc", "second", rows([sequences[0]]), OUTPUTS), [sequences[0]], session)
        assert_right(call(server, "grpc", "bert", rows([sequences[0]]), OUTPUTS), [sequences[0]], other)
        assert np.abs(before["pooler_output"] - after["pooler_output"]).max() > 0.01
        expected = [run.run({"input_ids": sequences})["pooler_output"] for run in (session, other)]
        # Files that the server's Python put beside the models do not prevent the next write.
        assert list(repository.rglob("__pycache__")) != []
        assert write_repository(other_file, repository, options).there
    assert repository.stat().st_ino == inode
    assert not ERROR.findall(server.log.read_text(errors="replace"))
    for number, answer in enumerate(answers):
        assert isinstance(answer, dict), answer  # no request was lost
        found, at = answer["pooler_output"][0], number % len(sequences)
        assert any(np.abs(found - right[at]).max() < TOLERANCE for right in expected)
