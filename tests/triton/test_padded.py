# SPDX-License-Identifier: Apache-2.0
"""A padded model in the Python backend, whose calls are cut into runs by measured costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.triton import ServingOptions, write_repository
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session
from padfree.runtime.batching import CostTable

from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS, call_all, rows
from .served_kinds import OUTPUTS, assert_right, random_sequences

pytestmark = pytest.mark.needs_triton

COSTS = CostTable("padded", (8, 64), (1, 64), ((1.0, 8.0), (2.0, 64.0)))


@pytest.fixture(scope="module")
def padded(server: TritonServer, other_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of the served model."""
    work = tmp_path_factory.mktemp("padded")
    save_model(rewrite(DEMO_DATA / "bert_tiny.onnx", interface="padded", verify=False).model, work / "padded.onnx")
    (work / "costs.json").write_text(COSTS.to_json(), encoding="utf-8")
    options = ServingOptions("padded", costs=work / "costs.json")
    written = write_repository(work / "padded.onnx", work / "repository", options).folder / "padded"
    written.rename(other_repository / "padded")
    server.post("v2/repository/models/padded/load")
    yield "padded"
    server.post("v2/repository/models/padded/unload")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_caller_gets_its_answer(server: TritonServer, padded: str, session: Session, protocol: str) -> None:
    pool = random_sequences(6, 90)
    requests = [pool[at : at + 1 + at % 3] for at in range(0, 87, 3)] + [[row] for row in pool]
    answers = call_all(server, protocol, padded, [rows(sequences) for sequences in requests], OUTPUTS)
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences, session)
