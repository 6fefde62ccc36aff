# SPDX-License-Identifier: Apache-2.0
"""The native backend: requests that do not fit get an error each, and the others of their batch are served."""

from __future__ import annotations

import json
import re
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.native_triton import metadata, write_model
from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS, Tensors, call_all
from .native import OUTPUTS, assert_right, random_requests, tensors

pytestmark = pytest.mark.needs_triton

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"input_ids": np.zeros((1, 0), np.int32)}, r"'input_ids' has shape \[1, 0\], allowed: "),
    "over-long": ({"input_ids": np.ones((1, 65), np.int32)}, "sequence 0 has 65 tokens, the model has 64 positions"),
    "unknown id": (
        {"input_ids": np.array([[5, 930]], np.int32)},
        r"value 930 at sequence 0, position 1: allowed 0\.\.929",
    ),
    "negative id": ({"input_ids": np.array([[-1]], np.int32)}, r"'input_ids' value -1 .*allowed 0\.\.929"),
    "other width": (
        {"input_ids": np.ones((1, 4), np.int32), "token_type_ids": np.ones((1, 3), np.int32)},
        r"'token_type_ids' has shape \[1, 3\], 'input_ids' asks for \[1, 4\]",
    ),
    "longer than its row": (
        {"input_ids": np.ones((2, 3), np.int32), "seq_lens": np.array([[3], [4]], np.int32)},
        r"'seq_lens' holds 4, allowed: 1\.\.3",
    ),
    "no tokens": (
        {"input_ids": np.ones((2, 3), np.int32), "seq_lens": np.array([[3], [0]], np.int32)},
        r"'seq_lens' holds 0, allowed: 1\.\.3",
    ),
    # The server itself refuses what the configuration rules out.
    "wrong type": ({"input_ids": np.ones((1, 3), np.int64)}, "data-type is 'INT64', but .* expects 'INT32'"),
    "wrong rank": ({"input_ids": np.ones((1, 3, 2), np.int32)}, "unexpected shape for input 'input_ids'"),
    "no ids": ({"token_type_ids": np.ones((1, 3), np.int32)}, "input"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bad_requests_fail_alone(native_server: TritonServer, protocol: str) -> None:
    good = random_requests(3, 10 * len(BAD))
    requests: list[Tensors] = []
    for at, (wrong, _) in enumerate(BAD.values()):
        requests += [tensors(sequences) for sequences in good[10 * at : 10 * at + 10]]
        requests.append(wrong)
    answers = call_all(native_server, protocol, "plain", requests, OUTPUTS)
    for answer, (kind, (_, message)) in zip(answers[10::11], BAD.items(), strict=True):
        assert isinstance(answer, Exception), kind
        assert re.search(message, str(answer)), str(answer)
    del answers[10::11]
    for answer, sequences in zip(answers, good, strict=True):
        assert_right(answer, sequences)


def test_a_run_that_fails_fails_its_own_requests(native_server: TritonServer, native_repository: Path) -> None:
    write_model(native_repository, "failing", plan="fail_value 929 delay_us 200")
    native_server.post("v2/repository/models/failing/load")
    requests = random_requests(4, 200, longest=5, most=2)
    answers = call_all(native_server, "grpc", "failing", [tensors(each) for each in requests], OUTPUTS)
    bad = [any((ids == 929).any() for ids, _ in sequences) for sequences in requests]
    failed = [isinstance(answer, Exception) for answer in answers]
    assert all(answers_with for answers_with, is_bad in zip(failed, bad, strict=True) if is_bad)
    for answer, sequences in zip(answers, requests, strict=True):
        if isinstance(answer, Exception):
            assert "the run met a value that fails" in str(answer)
        else:
            assert_right(answer, sequences)
    alone = call_all(native_server, "grpc", "failing", [tensors(each) for each in requests[:1]], OUTPUTS)
    assert isinstance(alone[0], Exception) == bad[0]


def refusal(server: TritonServer, model: str) -> str:
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post(f"v2/repository/models/{model}/load")
    return str(json.load(refused.value)["error"])


SHARED = {"name": "language", "role": "per_sequence", "limit": 9, "dtype": "int32", "shared": True}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "damaged": ({"inputs": []}, "model.plan.json: damaged padfree metadata: no input of the role tokens"),
    "newer": ({"format": 2}, "padfree metadata format '2', this backend reads format 1"),
    "padded": ({"interface": "padded"}, "the plan has the padded interface, this backend serves packed ones"),
    "shared": ({"inputs": [*metadata()["inputs"], SHARED]}, "the model has 'language' once for a whole batch"),
    "odd_output": (
        {"outputs": [{"name": "scores", "layout": "padded", "dtype": "float32", "shape": [None, None]}]},
        "output 'scores' has no row of one size for every token or every sequence",
    ),
    "odd_type": (
        {"outputs": [{"name": "scores", "layout": "packed", "dtype": "uint4", "shape": [None]}]},
        "'scores' has type uint4, which cannot be served",
    ),
    "unopened": ({"plan": "fail_open 1"}, "the plan does not want to be opened"),
    "unknown_parameter": ({"parameters": {"padfree_tokens": "9"}}, "unknown parameter 'padfree_tokens', allowed: "),
    "too_many_tokens": (
        {"parameters": {"padfree_max_tokens": "9999"}},
        "'padfree_max_tokens' is 9999, allowed: at most 512",
    ),
    "no_number": ({"parameters": {"padfree_contexts": "many"}}, "'padfree_contexts' is 'many', allowed: 1..8"),
    "elsewhere": ({"parameters": {"padfree_model": "../../other.plan"}}, "allowed: the name of a file"),
    "unknown_output": (
        {"config": 'output { name: "scores" data_type: TYPE_FP32 dims: [3] } instance_group { kind: KIND_CPU }'},
        "config.pbtxt has the output 'scores', which the plan does not have",
    ),
    "other_type": (
        {"config": 'input { name: "input_ids" data_type: TYPE_INT64 dims: [-1] } instance_group { kind: KIND_CPU }'},
        "config.pbtxt has the input 'input_ids' with TYPE_INT64, allowed: TYPE_INT32",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_cannot_be_served_are_refused_at_load(
    native_server: TritonServer, native_repository: Path, kind: str
) -> None:
    changes, message = REFUSED[kind]
    write_model(native_repository, kind, **changes)
    assert message in refusal(native_server, kind)


def test_metadata_that_are_no_json_or_missing(native_server: TritonServer, native_repository: Path) -> None:
    file = write_model(native_repository, "no_json") / "1" / "model.plan.json"
    file.write_text('{"format": 1', encoding="utf-8")
    assert "model.plan.json: damaged padfree metadata: no JSON" in refusal(native_server, "no_json")
    file.unlink()
    assert "model.plan.json cannot be read; copy the plan and" in refusal(native_server, "no_json")


def test_a_plan_that_was_cut_off(native_server: TritonServer, native_repository: Path) -> None:
    plan = write_model(native_repository, "cut_off", plan="delay_us 100") / "1" / "model.plan"
    plan.write_bytes(plan.read_bytes()[:-3])
    assert "model.plan: 9 bytes, its metadata say 12 bytes: the plan is cut off" in refusal(native_server, "cut_off")
    plan.unlink()
    assert "model.plan: it cannot be read" in refusal(native_server, "cut_off")
