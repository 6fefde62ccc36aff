# SPDX-License-Identifier: Apache-2.0
"""The native backend in a real server, with a stand-in for the engine: every caller gets its own answer."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest

from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS, call_all
from .native import OUTPUTS, assert_right, random_requests, tensors

pytestmark = [pytest.mark.needs_triton, pytest.mark.parametrize("protocol", PROTOCOLS)]


@pytest.mark.parametrize("outputs", [OUTPUTS, OUTPUTS[:1], OUTPUTS[1:]])
def test_every_caller_gets_its_answer(native_server: TritonServer, protocol: str, outputs: tuple[str, ...]) -> None:
    requests = random_requests(0, 300)
    answers = call_all(native_server, protocol, "plain", [tensors(each) for each in requests], outputs)
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences, outputs=outputs)


def test_types_that_are_missing_are_zeros(native_server: TritonServer, protocol: str) -> None:
    requests = random_requests(1, 50)
    answers = call_all(
        native_server, protocol, "plain", [tensors(each, with_types=False) for each in requests], OUTPUTS
    )
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, [(ids, np.zeros_like(ids)) for ids, _ in sequences])


def test_requests_share_runs(native_server: TritonServer, protocol: str) -> None:
    def runs() -> int:
        found = re.search(
            r'nv_inference_exec_count{model="plain",version="1"} (\d+)', native_server.get("metrics", "metrics")
        )
        return int(found[1]) if found else 0

    before = runs()
    requests = random_requests(2, 400, longest=10, most=1)
    answers = call_all(native_server, protocol, "plain", [tensors(each) for each in requests], OUTPUTS)
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences)
    assert 0 < runs() - before < len(requests) / 2


def test_who_asks_for_no_output_gets_all(native_server: TritonServer, protocol: str) -> None:
    """The request has ids alone, as from a client that does not know the model's outputs."""
    module = importlib.import_module(f"tritonclient.{protocol}")
    ids = np.array([[5, 6, 7]], np.int32)
    tensor = module.InferInput("input_ids", [1, 3], "INT32")
    tensor.set_data_from_numpy(ids)
    reply = module.InferenceServerClient(native_server.url(protocol)).infer("plain", [tensor])
    answer = {name: reply.as_numpy(name) for name in OUTPUTS}
    assert_right(answer, [(ids[0], np.zeros(3, np.int32))])
