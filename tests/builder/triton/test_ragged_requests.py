# SPDX-License-Identifier: Apache-2.0
"""Requests of several sequences in the tensorrt backend come back right, by the configuration that is written.

The backend itself needs a GPU and NVIDIA's container. What it does with a batch is repeated here, driven by
config.pbtxt, from its source: triton-inference-server/backend at 3f57fb9, src/backend_input_collector.cc
(BatchInputShape, SetBatchItemShape) and src/backend_output_responder.cc (ProcessTensor,
ProcessBatchOutput); tensorrt_backend at e2ef6d7, src/instance_state.cc (ModelInstanceState::Run). The engine is the
rewritten model in onnxruntime, its padded axis bounded as in an engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from padfree.builder.demo import DEMO_DATA
from padfree.builder.network import bound_max_seqlen
from padfree.builder.triton import ServingOptions, write_repository
from padfree.builder.triton.config import protobuf, read_text
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session

pytest.importorskip("tritonclient.grpc")

Array = npt.NDArray[Any]
Request = Mapping[str, Array]
PlanWriter = Callable[..., Path]

FAMILIES = Path(__file__).parents[2] / "fixtures" / "families"
MODELS = {
    "bert": DEMO_DATA / "bert_tiny.onnx",
    "deberta": FAMILIES / "deberta_v2_torchscript_eager.onnx",  # padded islands, token types
    "mpnet": FAMILIES / "mpnet_dynamo_eager.onnx",  # padded islands
}
LONGEST = 9
VOCABULARY = 30  # smaller than any model's
SHAPES = [(1, 4), (2, 9), (3, 1), (1, 7)]  # requests of one batch: n sequences of L tokens
TOLERANCE = 1e-5  # fp32 sums in another order


class RaggedBackend:
    """What Triton's backends do with the requests of one batch."""

    def __init__(self, config: Any, run: Callable[[Request], Request]) -> None:
        self.config = config
        self.run = run

    def execute(self, requests: Sequence[Request]) -> list[dict[str, Array]]:
        """The outputs of every request."""
        feeds = {}
        for item in self.config.input:
            assert item.allow_ragged_batch
            feeds[item.name] = np.concatenate([request[item.name].reshape(-1) for request in requests])
        for item in self.config.batch_input:
            kind = protobuf().BatchInput.Kind.Name(item.kind)
            feeds[item.target_name[0]] = batch_input(kind, [request[item.source_input[0]] for request in requests])
        outputs = self.run(feeds)
        scattered = {item.target_name[0]: item.source_input[0] for item in self.config.batch_output}
        answers: list[dict[str, Array]] = [{} for _ in requests]
        for item in self.config.output:
            rest = outputs[item.name].reshape(-1)
            for request, answer in zip(requests, answers, strict=True):
                first = request[self.config.input[0].name].shape[0]
                shape = [first, *outputs[item.name].shape[1:]]
                if item.name in scattered:
                    source = request[scattered[item.name]].shape
                    shape = [source[at] if size == -1 else size for at, size in enumerate([-1, *item.dims])]
                count = int(np.prod(shape))
                answer[item.name], rest = rest[:count].reshape(shape), rest[count:]
            assert rest.size == 0
        return answers


def batch_input(kind: str, sources: Sequence[Array]) -> Array:
    """A tensor that the server makes from the shapes of the requests' inputs."""
    if kind == "BATCH_ITEM_SHAPE_FLATTEN":
        return np.array([size for source in sources for _ in source for size in source.shape[1:]], np.int32)
    assert kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    return np.zeros(max(source.size for source in sources), np.int32)


@pytest.fixture(params=MODELS)
def served(request: pytest.FixtureRequest, write_plan: PlanWriter, tmp_path: Path) -> tuple[RaggedBackend, Path]:
    """The backend with a model's configuration, and the model's file."""
    model = rewrite(MODELS[request.param], verify=False).model
    file = tmp_path / "packed.onnx"
    save_model(model, file)
    raw = json.loads(next(item.value for item in model.metadata_props if item.key == "padfree"))
    plan = write_plan(profile={"max_seq_len": LONGEST}, **raw)
    folder = write_repository(plan, tmp_path / "models", ServingOptions("bert", server="24.11")).folder
    bound_max_seqlen(model, LONGEST)
    onnx.checker.check_model(model)
    engine = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [item.name for item in engine.get_outputs()]

    def run(feeds: Request) -> Request:
        return dict(zip(names, engine.run(names, dict(feeds)), strict=True))

    return RaggedBackend(read_text(folder / "bert" / "config.pbtxt"), run), file


def batch(config: Any) -> list[Request]:
    generator = np.random.default_rng(7)
    limits = {"input_ids": (5, VOCABULARY), "token_type_ids": (0, 2)}
    return [
        {item.name: generator.integers(*limits[item.name], shape, dtype=np.int32) for item in config.input}
        for shape in SHAPES
    ]


def test_every_sequence_of_every_request(served: tuple[RaggedBackend, Path]) -> None:
    backend, file = served
    requests = batch(backend.config)
    answers = backend.execute(requests)
    with Session(file) as session:
        for request, answer in zip(requests, answers, strict=True):
            expected = session.run({name: list(rows) for name, rows in request.items()})
            assert answer.keys() == expected.keys()
            for name, rows in expected.items():
                np.testing.assert_allclose(answer[name], np.stack(rows), atol=TOLERANCE)
