# SPDX-License-Identifier: Apache-2.0
"""The attention benchmark's cases with positions: their truth against other implementations, on the CPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks.attention import measurement, position_peers
from benchmarks.attention import peers as attention_peers
from benchmarks.attention import problem as problems
from benchmarks.attention.cases import Case, PositionTerms
from benchmarks.attention.position_cases import position_cases
from benchmarks.attention.problem import Problem, UnsupportedError, biased_scores, buckets_of

LENGTHS = (5, 40, 1, 23)
EVERY = [
    PositionTerms((3, 3)),
    PositionTerms((-1, 0)),
    PositionTerms(bias="slope"),
    PositionTerms((8, 2), bias="distance", bias_range=6),
    PositionTerms(bias="disentangled", bias_range=39, buckets=8),
]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (problems, attention_peers, measurement):
        monkeypatch.setattr(module, "DEVICE", "cpu")


def problem(positions: PositionTerms) -> Problem:
    case = Case("small", 3, 16, LENGTHS, (), positions=positions)
    inputs = (torch.randn(case.tokens, 3, 3, 16, generator=torch.Generator().manual_seed(0)).half(),)
    return Problem(case, inputs, torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32))


def test_every_kind_of_case_is_there_once() -> None:
    names = [case.name for case in position_cases()]
    assert len(names) == len(set(names))
    assert {case.positions.bias for case in position_cases()} == {"none", "slope", "distance", "disentangled"}


@pytest.mark.parametrize("places", EVERY[:2], ids=str)
def test_flex_attention_gives_the_truth_of_heads_that_share_keys(
    places: PositionTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    case = Case("small", 4, 16, LENGTHS, (), positions=places, kv_heads=2)
    inputs = (torch.randn(case.tokens, 8, 16, generator=torch.Generator().manual_seed(0)).half(),)
    result = Problem(case, inputs, torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32))
    launch = position_peers.flex(result)
    truth = measurement.plain_attention(result, torch.float64)
    assert case.bytes_moved == case.tokens * 12 * 16 * 2
    assert measurement.max_error(launch.pack(launch.run(0)), truth) < 3e-3


@pytest.mark.parametrize("places", EVERY[:4], ids=str)
def test_flex_attention_gives_the_truth(places: PositionTerms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    result = problem(places)
    launch = position_peers.flex(result)
    truth = measurement.plain_attention(result, torch.float64)
    assert measurement.max_error(launch.pack(launch.run(0)), truth) < 3e-3


def test_a_disentangled_bias_is_what_transformers_computes() -> None:
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    result = problem(EVERY[4])
    heads, size, buckets, length = 3, 16, 8, 40
    config = deberta.DebertaV2Config(
        hidden_size=heads * size,
        num_attention_heads=heads,
        relative_attention=True,
        position_buckets=buckets,
        max_relative_positions=problems.LONGEST_DISTANCE,
        pos_att_type=["c2p", "p2c"],
        share_att_key=False,
    )
    module = deberta.DisentangledSelfAttention(config).eval().double()
    q, k, _ = (x[5 : 5 + length].double().transpose(0, 1) for x in result.operands(0))
    rows = torch.randn(2 * buckets, heads * size, generator=torch.Generator().manual_seed(3)).double()
    with torch.inference_mode():
        bias = module.disentangled_attention_bias(q, k, None, rows, 3)
        bucket = buckets_of(result.case.positions)
        k_rows, q_rows = module.pos_key_proj(rows)[bucket], module.pos_query_proj(rows)[bucket]
        positions = problems.Positions(k_position=k_rows, q_position=q_rows)
        scores = biased_scores(result, q, k, slice(None), positions)
    torch.testing.assert_close(scores, q @ k.transpose(1, 2) * result.scale + bias)


def test_peers_say_which_positions_they_do_not_know() -> None:
    with pytest.raises(UnsupportedError, match="disentangled bias alone"):
        position_peers.flashdeberta_padded(problem(EVERY[0]))
    with pytest.raises(UnsupportedError, match="neither Q nor K"):
        position_peers.flex(problem(EVERY[4]))
