# SPDX-License-Identifier: Apache-2.0
"""PadfreePool with rows that it normalises first, with results in float32, and with one row per sequence."""

from __future__ import annotations

import pytest
import torch

from tests.support.launchers import DATA_TYPES, POOL_EACH, POOL_MODES, Float, call

from .cases import DEVICE, LENGTHS, assert_guards, cumulative, poisoned_output, with_filler
from .norm_operands import norm_rows, normal

HALVES = [torch.float16, torch.bfloat16]
EPS = 1e-5
BATCHES = ["mixed", "empty between", "all empty", "one long", "many short", "one", "tile edges"]
WITHIN = 1e-5
"""The largest error of results in float32 relative to the truth's largest number: sums of rows round."""


def pool(rows: torch.Tensor, lengths: list[int], mode: str, normalize: bool) -> torch.Tensor:
    """The pooled rows, computed in the type of the rows."""
    results, start = [torch.zeros(0, rows.shape[1], dtype=rows.dtype, device=DEVICE)], 0
    for length in lengths:
        part = rows[start : start + length]
        start += length
        if length == 0:
            results.append(rows.new_zeros(1, rows.shape[1]))
        else:
            results.append({"first": part[:1], "last": part[-1:], "mean": part.mean(0, keepdim=True)}[mode])
    result = torch.cat(results)
    return torch.nn.functional.normalize(result, dim=-1) if normalize else result


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("width", [8, 64, 384, 520, 768, 1024])
@pytest.mark.parametrize("mode", ["first", "last", "mean"])
@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("options", ["beta", "rms"])
def test_rows_are_normed_first(dtype: torch.dtype, width: int, mode: str, normalize: int, options: str) -> None:
    gamma = normal(width, dtype=dtype, seed=4)
    beta = normal(width, dtype=dtype, seed=5) if options == "beta" else None
    for name in BATCHES:
        lengths = LENGTHS[name]
        tokens = sum(lengths)
        x = with_filler(normal(tokens, width, dtype=dtype) * 3 + 1, 9)
        truth = norm_rows(
            x[:tokens].double(), gamma.double(), None if beta is None else beta.double(), options == "rms", EPS
        )
        truth = pool(truth, lengths, mode, bool(normalize))
        (wide, wide_buffer), (again, _) = (poisoned_output((len(lengths), width), torch.float32) for _ in range(2))
        rounded, buffer = poisoned_output((len(lengths), width), dtype)
        for y, y_fp32 in ((None, wide), (None, again), (rounded, None)):
            call(
                "padfreeNormedPool", x, cumulative(lengths), y, tokens + 9, len(lengths), width, POOL_MODES[mode],
                normalize, DATA_TYPES[dtype], y_fp32, gamma, beta, Float(EPS), int(options == "rms"), 0,
            )  # fmt: skip
        torch.cuda.synchronize()
        assert_guards(buffer)
        assert_guards(wide_buffer)
        assert torch.equal(wide, again)
        assert torch.equal(wide.to(dtype), rounded)
        torch.testing.assert_close(wide.double(), truth, rtol=0, atol=WITHIN * float(truth.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float16], ids=str)
@pytest.mark.parametrize("width", [99, 384])
@pytest.mark.parametrize("mode", POOL_MODES)
@pytest.mark.parametrize("normalize", [0, 1])
def test_results_in_float32_are_rounded_to_those_in_half_precision(
    dtype: torch.dtype, width: int, mode: str, normalize: int
) -> None:
    lengths = LENGTHS["mixed"]
    tokens = sum(lengths)
    x = with_filler(normal(tokens, width, dtype=dtype) + 0.5, 9)
    (wide, wide_buffer), (y, _) = (
        poisoned_output((len(lengths), width), torch.float32),
        poisoned_output((len(lengths), width), dtype),
    )
    for result, y_fp32 in ((None, wide), (y, None)):
        call(
            "padfreeNormedPool", x, cumulative(lengths), result, tokens + 9, len(lengths), width, POOL_MODES[mode],
            normalize, DATA_TYPES[dtype], y_fp32, None, None, Float(0), 0, 0,
        )  # fmt: skip
    torch.cuda.synchronize()
    assert_guards(wide_buffer)
    if normalize:  # in half precision the sums are rounded before their norm is computed
        torch.testing.assert_close(wide, y.float(), rtol=0, atol=2 * torch.finfo(dtype).eps)
    else:
        assert torch.equal(wide.to(dtype), y)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("width", [99, 384, 1024])
@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("normed", [False, True])
def test_rows_of_sequences(dtype: torch.dtype, width: int, normalize: int, normed: bool) -> None:
    """x has a row for each sequence; those of empty sequences, NaN here, are not read."""
    if normed and (width == 99 or dtype == torch.float32):
        pytest.skip("PadfreePool norms rows in half precision whose width is a multiple of 8")
    lengths = LENGTHS["empty between"]
    some = torch.tensor(lengths, device=DEVICE) > 0
    x = normal(len(lengths), width, dtype=dtype) * 3 + 1
    x[~some] = float("nan")
    gamma = normal(width, dtype=dtype, seed=4) if normed else None
    y, buffer = poisoned_output((len(lengths), width), dtype)
    call(
        "padfreeNormedPool", x, cumulative(lengths), y, len(lengths), len(lengths), width, POOL_EACH, normalize,
        DATA_TYPES[dtype], None, gamma, None, Float(EPS), 0, 0,
    )  # fmt: skip
    torch.cuda.synchronize()
    assert_guards(buffer)
    truth = torch.where(some[:, None], x.double(), 0.0)
    if gamma is not None:
        truth = torch.where(some[:, None], norm_rows(truth, gamma.double(), None, rms=False, eps=EPS), 0.0)
    if normalize:
        truth = torch.nn.functional.normalize(truth, dim=-1)
    allowed = 2 * torch.finfo(dtype).eps * float(truth.abs().max())
    torch.testing.assert_close(y.double(), truth, rtol=0, atol=max(allowed, WITHIN))
