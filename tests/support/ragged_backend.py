# SPDX-License-Identifier: Apache-2.0
"""What Triton's tensorrt backend does with the requests of a batch, driven by config.pbtxt.

The backend itself needs NVIDIA's container. This repeats its source: triton-inference-server/backend at 3f57fb9,
src/backend_input_collector.cc (BatchInputShape, SetBatchItemShape) and src/backend_output_responder.cc (ProcessTensor,
ProcessBatchOutput); tensorrt_backend at e2ef6d7, src/instance_state.cc (ModelInstanceState::Run).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.builder.triton.config import protobuf

Array = npt.NDArray[Any]
Request = Mapping[str, Array]

SHAPES = [(1, 4), (2, 9), (3, 1), (1, 7)]  # requests of one batch: n sequences of L tokens
LONGEST = 9
VOCABULARY = 30  # smaller than the vocabulary of any of the tests' models


class RaggedBackend:
    """A model in the backend.

    Args:
        config: its configuration.
        run: the engine, from its inputs, including batch inputs, to its outputs.
    """

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
    """The tensor that the server makes from the shapes of the requests' inputs."""
    if kind == "BATCH_ITEM_SHAPE_FLATTEN":
        return np.array([size for source in sources for _ in source for size in source.shape[1:]], np.int32)
    assert kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    return np.zeros(max(source.size for source in sources), np.int32)


def make_requests(config: Any) -> list[Request]:
    """Requests of SHAPES, with all inputs of the configuration."""
    generator = np.random.default_rng(7)
    limits = {"input_ids": (5, VOCABULARY), "token_type_ids": (0, 2)}
    return [
        {item.name: generator.integers(*limits[item.name], shape, dtype=np.int32) for item in config.input}
        for shape in SHAPES
    ]
