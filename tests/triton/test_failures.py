# SPDX-License-Identifier: Apache-2.0
"""A model whose runs can fail: the caller gets a 500, others are served, and the failure is counted."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime import Session

from tests.support.triton_server import TritonServer

from .calls import call_all, rows
from .processes import wait_until
from .served_kinds import OUTPUTS, assert_right

pytestmark = pytest.mark.needs_triton

LONGEST = 40  # the run of a longer sequence reads beyond a table's end


def test_failed_requests_are_counted(
    server: TritonServer, model_file: Path, other_repository: Path, session: Session, tmp_path: Path
) -> None:
    model = onnx.load(str(model_file))
    for node in model.graph.node:
        node.output[:] = ["pooled" if name == "pooler_output" else name for name in node.output]
    rows_by_length = numpy_helper.from_array(np.zeros((LONGEST + 1, 1), np.float32), "rows_by_length")
    model.graph.initializer.append(rows_by_length)
    model.graph.node.append(helper.make_node("Gather", ["rows_by_length", "seq_lens"], ["nothing"]))
    model.graph.node.append(helper.make_node("Add", ["pooled", "nothing"], ["pooler_output"]))
    onnx.save_model(model, str(tmp_path / "failing.onnx"))
    options = ServingOptions("failing", max_batch=1)
    written = write_repository(tmp_path / "failing.onnx", tmp_path / "repository", options).folder / "failing"
    written.rename(other_repository / "failing")
    server.post("v2/repository/models/failing/load")
    good = [7, 8, 9]
    requests = [rows([good]), rows([good * LONGEST]), rows([good])]
    first, failed, last = call_all(server, "http", "failing", requests, OUTPUTS)
    for answer in (first, last):
        assert_right(answer, [good], session)
    assert isinstance(failed, Exception)

    def count(name: str) -> float:
        page = server.get("metrics", "metrics")
        return sum(map(float, re.findall(rf'^padfree_{name}\{{.*model="failing".*\}} (\S+)$', page, re.MULTILINE)))

    wait_until(lambda: count("failed_requests_total") == 1, "the failure on the page")
    assert count("refused_requests_total") == 0
    server.post("v2/repository/models/failing/unload")
