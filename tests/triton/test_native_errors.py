# SPDX-License-Identifier: Apache-2.0
"""Requests that do not fit get an error each from the native backend, and the others of their batch are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from padfree.runtime import SessionError, open_plan

from tests.support.native_triton import MAX_POSITIONS, metadata, write_model
from tests.support.triton_server import TritonServer

from .bad_requests import assert_bad_requests_fail_alone
from .calls import PROTOCOLS, call_all, refusal
from .native import OUTPUTS, assert_right, random_requests, tensors

pytestmark = pytest.mark.needs_triton


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bad_requests_fail_alone(native_server: TritonServer, protocol: str) -> None:
    sequences = random_requests(3, 200)
    answers = assert_bad_requests_fail_alone(
        native_server,
        protocol,
        "plain",
        MAX_POSITIONS,
        lambda count: [tensors(each) for each in sequences[:count]],
        OUTPUTS,
    )
    for answer, each in zip(answers, sequences, strict=False):
        assert_right(answer, each)


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


def test_a_plan_that_is_not_what_was_built(native_server: TritonServer, native_repository: Path) -> None:
    """Session refuses the plan in the same words."""
    plan = write_model(native_repository, "damaged_plan", plan="delay_us 100") / "1" / "model.plan"
    for content in (b"delay_us ", b"delay_us 101"):
        plan.write_bytes(content)
        with pytest.raises(SessionError) as refused:
            open_plan(plan)
        reason = str(refused.value).removeprefix(str(plan))
        assert f"model.plan{reason}" in refusal(native_server, "damaged_plan")
    plan.unlink()
    assert "model.plan: cannot be read; copy the plan" in refusal(native_server, "damaged_plan")


def test_a_large_plan_is_read_whole(native_server: TritonServer, native_repository: Path) -> None:
    """The plans include one of more than one piece, and sizes around a block of the digest."""
    for size in (55, 56, 63, 64, 65, 119, (1 << 22) + 7):
        name = f"size_{size}"
        content = "delay_us 100"
        write_model(native_repository, name, plan=content + "\n" * (size - len(content)))
        native_server.post(f"v2/repository/models/{name}/load")
