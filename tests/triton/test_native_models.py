# SPDX-License-Identifier: Apache-2.0
"""The native backend with every kind of input and output that metadata describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.native_triton import hidden, metadata, pooled_answer, write_model
from tests.support.triton_server import TritonServer

from .calls import call, call_all
from .native import OUTPUTS, assert_right, random_requests, tensors

pytestmark = pytest.mark.needs_triton

IDS, TYPES, SEQ_LENS = metadata()["inputs"]


def input_(name: str, role: str, dtype: str = "int32", **fields: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "limit": None, "dtype": dtype, **fields}


def output(name: str, layout: str, dtype: str, *sizes: int) -> dict[str, Any]:
    return {"name": name, "layout": layout, "dtype": dtype, "shape": [None, *sizes]}


INPUTS = [
    input_("boxes", "tokens", width=4, limit=100),
    IDS,
    input_("embeddings", "tokens", "float32", width=3),
    input_("language", "per_sequence", limit=7),
    input_("features", "per_sequence", "float32", width=2),
    input_("prompt_length", "per_sequence"),
    input_("max_seqlen", "max_seqlen"),
    input_("prefix", "prefix"),
    input_("mask", "unread"),
    SEQ_LENS,
]
RESULTS = [
    output("half", "packed", "float16", 5),
    output("number", "per_sequence", "float32"),
    output("grid", "packed", "bfloat16", 2, 3),
    output("label", "packed", "int64"),
    output("ranks", "per_sequence", "int32", 2, 2),
    output("flags", "per_sequence", "bool", 3),
]


def test_inputs_and_outputs_of_all_kinds(native_server: TritonServer, native_repository: Path) -> None:
    write_model(native_repository, "kinds", inputs=INPUTS, outputs=RESULTS)
    native_server.post("v2/repository/models/kinds/load")
    rng = np.random.default_rng(5)
    requests = []
    for _ in range(60):
        count, width = int(rng.integers(1, 4)), int(rng.integers(1, 30))
        requests.append(
            {
                "boxes": rng.integers(0, 100, (count, width, 4), dtype=np.int32),
                "input_ids": rng.integers(0, 930, (count, width), dtype=np.int32),
                "embeddings": rng.integers(-9, 10, (count, width, 3)).astype(np.float32),
                "language": rng.integers(0, 7, (count, 1), dtype=np.int32),
                "features": rng.integers(-5, 6, (count, 2)).astype(np.float32),
                "seq_lens": rng.integers(1, width + 1, (count, 1), dtype=np.int32),
            }
        )
        if rng.random() < 0.5:
            requests[-1]["prompt_length"] = rng.integers(0, 9, (count, 1), dtype=np.int32)
    # bfloat16 holds only small numbers exactly, so its output has a test of its own.
    wanted = ("half", "number", "label", "ranks", "flags")
    for request, answer in zip(requests, call_all(native_server, "grpc", "kinds", requests, wanted), strict=True):
        assert isinstance(answer, dict), answer
        for at, length in enumerate(request["seq_lens"][:, 0]):
            values = [request[name][at, :length] for name in ("boxes", "input_ids", "embeddings")]
            values.append(np.zeros(length, np.int32))  # for the input that nothing reads
            beside = int(request["language"][at, 0])
            beside += 2 * int((request["features"][at] * (1, 2)).sum())
            beside += 3 * int(request["prompt_length"][at, 0]) if "prompt_length" in request else 0
            rows, vector = hidden(*values, width=5), pooled_answer(*values, of_sequence=beside, width=4)
            np.testing.assert_array_equal(answer["half"][at, :length], rows)
            assert not answer["half"][at, length:].any()
            np.testing.assert_array_equal(answer["label"][at, :length], rows[:, 0])
            np.testing.assert_array_equal(answer["ranks"][at], vector.reshape(2, 2))
            np.testing.assert_array_equal(answer["flags"][at], vector[:3] % 2 == 1)
            assert answer["number"][at] == vector[0]
        assert answer["number"].shape == (len(request["input_ids"]), 1)


def test_bfloat16_leaves_as_it_is(native_server: TritonServer, native_repository: Path) -> None:
    write_model(native_repository, "bfloat16", outputs=[output("hidden", "packed", "bfloat16", 1)])
    native_server.post("v2/repository/models/bfloat16/load")
    ids = np.array([[1, 2, 3]], np.int32)
    answer = call(native_server, "grpc", "bfloat16", {"input_ids": ids}, ["hidden"])
    np.testing.assert_array_equal(answer["hidden"][..., 0], hidden(ids[0], np.zeros(3, np.int32), width=1)[:, 0][None])


def test_the_backend_completes_the_configuration(native_server: TritonServer, native_repository: Path) -> None:
    write_model(native_repository, "completed", inputs=INPUTS, outputs=RESULTS)
    native_server.post("v2/repository/models/completed/load")
    config = json.loads(native_server.get("v2/models/completed/config"))
    assert config["max_batch_size"] == 16
    assert "dynamic_batching" in config
    found = {item["name"]: (item["data_type"], item["dims"], item["optional"]) for item in config["input"]}
    assert found == {
        "boxes": ("TYPE_INT32", [-1, 4], False),
        "input_ids": ("TYPE_INT32", [-1], False),
        "embeddings": ("TYPE_FP32", [-1, 3], False),
        "language": ("TYPE_INT32", [1], False),
        "features": ("TYPE_FP32", [2], False),
        "prompt_length": ("TYPE_INT32", [1], True),
        "seq_lens": ("TYPE_INT32", [1], True),
    }
    assert all(item["allow_ragged_batch"] == (item["dims"][0] == -1) for item in config["input"])
    assert [(item["name"], item["data_type"], item["dims"]) for item in config["output"]] == [
        ("half", "TYPE_FP16", [-1, 5]),
        ("number", "TYPE_FP32", [1]),
        ("grid", "TYPE_BF16", [-1, 2, 3]),
        ("label", "TYPE_INT64", [-1]),
        ("ranks", "TYPE_INT32", [2, 2]),
        ("flags", "TYPE_BOOL", [3]),
    ]


def test_what_a_configuration_says_stays(native_server: TritonServer, native_repository: Path) -> None:
    config = 'max_batch_size: 3 output { name: "pooled" data_type: TYPE_FP32 dims: [3] }'
    config += " instance_group { kind: KIND_CPU count: 2 } dynamic_batching { max_queue_delay_microseconds: 700 }"
    write_model(native_repository, "own", config=config)
    native_server.post("v2/repository/models/own/load")
    completed = json.loads(native_server.get("v2/models/own/config"))
    assert completed["max_batch_size"] == 3
    assert [item["name"] for item in completed["output"]] == ["pooled"]
    assert completed["dynamic_batching"]["max_queue_delay_microseconds"] == 700
    requests = random_requests(6, 100)
    answers = call_all(native_server, "grpc", "own", [tensors(each) for each in requests], ["pooled"])
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences, outputs=["pooled"])


@pytest.mark.parametrize("budget", ["64", "100", "0"])
def test_runs_keep_the_token_budget(native_server: TritonServer, native_repository: Path, budget: str) -> None:
    """The stand-in refuses runs with more tokens than the profile; a budget of 64 is one sequence of maximal length."""
    name = f"budget_{budget}"
    parameters = {"padfree_max_tokens": budget}
    profile = {"min_tokens": 1, "opt_tokens": 64, "max_tokens": int(budget) or 512, "max_batch": 16, "max_seq_len": 64}
    engine = {**metadata()["engine"], "profile": profile}
    config = "max_batch_size: 64 instance_group { kind: KIND_CPU }"
    write_model(native_repository, name, config=config, engine=engine, parameters=parameters)
    native_server.post(f"v2/repository/models/{name}/load")
    requests = random_requests(7, 60, most=30)  # of up to 1920 tokens, in several runs each
    answers = call_all(native_server, "grpc", name, [tensors(each) for each in requests], OUTPUTS)
    for answer, sequences in zip(answers, requests, strict=True):
        assert_right(answer, sequences)
