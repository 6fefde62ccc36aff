# SPDX-License-Identifier: Apache-2.0
"""The attention benchmark around its kernels: truth, padding, grouping, errors; on the CPU, with PyTorch."""

from __future__ import annotations

import contextlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.attention import measurement as attention
from benchmarks.attention import peers as attention_peers
from benchmarks.attention import problem as problems
from benchmarks.attention.cases import Case
from benchmarks.attention.problem import Launch, Problem, UnsupportedError, padding, unpadding
from benchmarks.attention.report import table

LENGTHS = (5, 17, 1, 8, 30, 12, 3)


@pytest.fixture
def problem(monkeypatch: pytest.MonkeyPatch) -> Problem:
    """A small ragged case on the CPU."""
    for module in (problems, attention_peers, attention):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    generator = torch.Generator().manual_seed(0)
    case = Case("small", 3, 16, LENGTHS, ())
    inputs = tuple(torch.randn(case.tokens, 3, 3, 16, generator=generator).half() for _ in range(2))
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32)
    return Problem(case, inputs, cu_seqlens)


def test_truth_is_attention_inside_each_sequence(problem: Problem) -> None:
    truth = attention.plain_attention(problem, torch.float64)
    start = 0
    for length in LENGTHS:
        q, k, v = (x[start : start + length].double().transpose(0, 1) for x in problem.operands(0))
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        torch.testing.assert_close(truth[start : start + length], wanted)
        start += length


def test_padded_peer_gives_the_truth(problem: Problem) -> None:
    launch = attention_peers.padded_matmul(problem)
    truth = attention.plain_attention(problem, torch.float64)
    assert attention.max_error(launch.pack(launch.run(0)), truth) < 2e-3
    assert attention.max_error(launch.pack(launch.run(1)), truth) > 0.1  # another input set


def test_padding_and_back_is_the_identity(problem: Problem) -> None:
    q = problem.operands(0)[0]
    padded = padding(problem)(q)
    assert padded.shape == (len(LENGTHS), 3, max(LENGTHS), 16)
    assert torch.equal(padded[1, :, : LENGTHS[1]], q[LENGTHS[0] : LENGTHS[0] + LENGTHS[1]].transpose(0, 1))
    assert not bool(padded[0, :, LENGTHS[0] :].any())
    assert torch.equal(unpadding(problem)(padded), q.flatten(1))


def test_groups_of_like_lengths_give_the_truth(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[int]] = []

    def varlen_attn(q: Any, k: Any, v: Any, offsets: Any, _: Any, longest: int, __: int) -> Any:
        lengths = offsets.diff().tolist()
        assert longest == max(lengths)
        groups.append(lengths)
        case = Case("group", q.shape[1], q.shape[2], tuple(lengths), ())
        part = Problem(case, (torch.stack([q, k, v], 1),), offsets)
        return attention.plain_attention(part, torch.float64).unflatten(1, q.shape[1:])

    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", SimpleNamespace(varlen_attn=varlen_attn))
    stream = SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    launch = attention_peers.grouped_streams(problem)
    output = launch.pack(launch.run(0))
    torch.testing.assert_close(output, attention.plain_attention(problem, torch.float64))
    assert groups == [[5, 1, 8, 3], [12], [17], [30]]


def test_peers_say_what_they_cannot_do(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="lengths differ"):
        attention_peers.cudnn_equal(problem)
    monkeypatch.setattr(attention_peers, "MAX_SCORE_BYTES", 1000)
    with pytest.raises(UnsupportedError, match="padded scores"):
        attention_peers.padded_matmul(problem)


def test_errors_are_relative_to_the_largest_value() -> None:
    truth = torch.tensor([[4.0, -8.0]], dtype=torch.float64)
    assert attention.max_error(torch.tensor([[4.0, -7.0]]), truth) == 0.125
    assert attention.max_error(torch.tensor([[4.0, float("nan")]]), truth) == float("inf")
    assert attention.max_error(torch.tensor([[4.0]]), truth) == float("inf")


def test_a_peer_that_fails_is_recorded_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'flash_attn'")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert attention.attempt("flash-attn-4", missing) == "ModuleNotFoundError: No module named 'flash_attn'"

    def fail() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(attention.BrokenContextError, match="flash-attn-4: ModuleNotFoundError"):
        attention.attempt("flash-attn-4", missing)


def test_a_wrong_peer_is_not_timed(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    truth = attention.plain_attention(problem, torch.float64)

    def make(_: Problem) -> Launch:
        return Launch(lambda _: 2 * truth)

    with pytest.raises(UnsupportedError, match=r"wrong: relative error 1.0e\+00"):
        attention.prepare(make, problem, truth, 1e-3, repeats=False)


def test_one_case_end_to_end(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything except the GPU, with stand-ins for kernels, graphs and clocks."""

    def kernel(operands: Any, cu_seqlens: Any, y: Any, **_: Any) -> None:
        part = Problem(problem.case, (torch.stack(list(operands), 1),), cu_seqlens)
        y.copy_(attention.plain_attention(part, torch.float64))

    def absent(_: Problem) -> Launch:
        raise ModuleNotFoundError("No module named 'flashinfer'")

    monkeypatch.setattr(attention_peers, "attention", kernel)
    monkeypatch.setattr(attention_peers, "make_tasks", lambda *_, **__: None)
    monkeypatch.setattr(attention, "capture", lambda work: work)
    monkeypatch.setattr(attention, "mean_ms", lambda work, runs: (work(), 0.5 + 0.001 * runs)[1])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    cache = SimpleNamespace(L2_cache_size=10 * problem.case.bytes_moved)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: cache)
    peers = {
        "padded matmul": attention_peers.padded_matmul,
        "cuDNN": attention_peers.cudnn_equal,
        "flashinfer": absent,
        "flash-attn-4": attention_peers.flash_attention_4,
    }
    said: list[str] = []
    record = attention.run_case(
        problem.case, peers, {"flash-attn-4": "broke the CUDA context"}, warm=False, say=said.append
    )
    assert record["input_sets"] == attention.CACHE_MULTIPLE * 10
    assert record["ours_us"] == record["peers_us"]["padded matmul"] > 0
    assert record["max_error"] <= record["reference_error"]  # the stand-in computes in float64
    assert record["unavailable"] == {
        "cuDNN": "lengths differ",
        "flashinfer": "ModuleNotFoundError: No module named 'flashinfer'",
        "flash-attn-4": "broke the CUDA context",
    }
    assert record["passed"] is True
    assert record["l2"] == "cold"
    assert any("flashinfer: ModuleNotFoundError" in line for line in said)
    json.dumps(record)


def test_a_wrong_result_of_ours_fails_the_case(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_peers, "attention", lambda *arguments, **_: arguments[2].zero_())
    monkeypatch.setattr(attention_peers, "make_tasks", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=1))
    record = attention.run_case(problem.case, {}, {}, warm=True, say=lambda _: None)
    assert record["passed"] is False
    assert record["ours_us"] is None
    assert record["unavailable"]["ours"].startswith("wrong: relative error 1.0e+00")
    assert "wrong" in table([record])
