# SPDX-License-Identifier: Apache-2.0
"""With the written configuration, the tensorrt backend answers requests of several sequences correctly.

The engine is the rewritten model in onnxruntime, its padded axis bounded as in an engine; tests/gpu has engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine.lowering import bound_max_seqlen
from padfree.builder.triton import ServingOptions, write_repository
from padfree.builder.triton.config import read_text
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session

from tests.support.messages import lower
from tests.support.ragged_backend import LONGEST, RaggedBackend, Request, make_requests

pytest.importorskip("tritonclient.grpc")

PlanWriter = Callable[..., Path]

FAMILIES = Path(__file__).parents[2] / "fixtures" / "families"
MODELS = {
    "bert": DEMO_DATA / "bert_tiny.onnx",
    "deberta": FAMILIES / "deberta_v2_torchscript_eager.onnx",  # padded islands, token types
    "mpnet": FAMILIES / "mpnet_dynamo_eager.onnx",  # biases by distance
}
TOLERANCE = 1e-5  # fp32 sums in another order


@pytest.fixture(params=MODELS)
def served(request: pytest.FixtureRequest, write_plan: PlanWriter, tmp_path: Path) -> tuple[RaggedBackend, Path]:
    """The backend with a model's configuration, and the path of the model's file."""
    model = rewrite(MODELS[request.param], verify=False).model
    file = tmp_path / "packed.onnx"
    save_model(model, file)
    raw = json.loads(next(item.value for item in model.metadata_props if item.key == "padfree"))
    plan = write_plan(profile={"max_seq_len": LONGEST}, **raw)
    folder = write_repository(plan, tmp_path / "models", ServingOptions("bert", "tensorrt", server="24.11")).folder
    lower(bound_max_seqlen, model, LONGEST)
    onnx.checker.check_model(model)
    engine = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [item.name for item in engine.get_outputs()]

    def run(feeds: Request) -> Request:
        return dict(zip(names, engine.run(names, dict(feeds)), strict=True))

    return RaggedBackend(read_text(folder / "bert" / "config.pbtxt"), run), file


def test_every_sequence_of_every_request(served: tuple[RaggedBackend, Path]) -> None:
    backend, file = served
    requests = make_requests(backend.config)
    answers = backend.execute(requests)
    with Session(file) as session:
        for request, answer in zip(requests, answers, strict=True):
            expected = session.run({name: list(rows) for name, rows in request.items()})
            assert answer.keys() == expected.keys()
            for name, rows in expected.items():
                np.testing.assert_allclose(answer[name], np.stack(rows), atol=TOLERANCE)
