"""Norms of rows in half precision that write float32, which rounds to the rows that they write in half precision.

With the rows in float32 they may write the sequences' first rows in half precision, or a pooler's results for these.
"""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import DATA_TYPES, Float, Int64, call

from .cases import DEVICE, assert_guards, poisoned_output
from .norm_operands import NormOperands, normal

WIDTHS = [8, 64, 99, 100, 384, 512, 768, 1024, 1280, 2048, 4096, 5000, 5001]
OPTIONS = ["", "bias residual beta sum", "residual beta", "rms residual sum"]
EPS = 1e-5
WITHIN = 1e-5
"""The largest error of rows relative to the truth's largest number, in float64."""


def offsets(rows: int) -> torch.Tensor:
    """cu_seqlens of five sequences, two of them empty, followed by filler if there are rows for it."""
    ends = [0, rows // 3, rows // 3, rows // 2, rows, rows] if rows < 100 else [0, 0, 17, 100, 100, rows - 5]
    return torch.tensor(ends, device=DEVICE, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [0, 1, 133])
def test_layer_norm(dtype: torch.dtype, width: int, options: str, rows: int) -> None:
    operands, buffers, sums = NormOperands.draw(rows, width, dtype, options), [], []
    cu_seqlens = offsets(rows)
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:]

    def launch(y: torch.Tensor | None, wide: torch.Tensor, first: torch.Tensor | None = None) -> None:
        total, buffer = poisoned_output((rows, width), dtype)
        sums.append(total)
        buffers.append(buffer)
        call(
            "padfreeLayerNormFp32", *operands.tensors(), y, total if "sum" in options else None,
            Int64(rows), width, Float(EPS), int(operands.rms), DATA_TYPES[dtype], wide, first, cu_seqlens, len(starts),
            None, None, None, 0, 0,
        )  # fmt: skip

    wide = torch.float32
    output = {name: poisoned_output((rows, width), kind) for name, kind in
            (("y", dtype), ("beside", wide), ("alone", wide), ("with_first", wide))}  # fmt: skip
    output["first"] = poisoned_output((len(starts), width), dtype)
    launch(output["y"][0], output["beside"][0])
    launch(None, output["alone"][0])
    launch(None, output["with_first"][0], output["first"][0])
    torch.cuda.synchronize()
    for buffer in (*buffers, *(buffer for _, buffer in output.values())):
        assert_guards(buffer)
    y, beside, alone, with_first, first = (result for result, _ in output.values())
    assert torch.equal(alone, beside)
    assert torch.equal(with_first, beside)
    assert torch.equal(beside.to(dtype), y)
    expected = torch.zeros_like(first)
    expected[starts < ends] = y[starts[starts < ends].long()]
    assert not rows or torch.equal(first, expected)  # the launcher decides by y_fp32, which is null without rows
    truth = operands.truth(EPS)
    assert not rows or bool(((beside.double() - truth).abs() <= WITHIN * truth.abs().max()).all())
    assert "sum" not in options or all(torch.equal(total, sums[0]) for total in sums)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [8, 72, 256, 384, 768, 1024, 1280, 4096])
@pytest.mark.parametrize("columns", [1, 384, 1000])
@pytest.mark.parametrize("options", ["beta", "rms", "beta sum"])
@pytest.mark.parametrize("batch", [[1], [0, 17, 0, 100, 0], [5] * 70, []], ids=lambda batch: f"{len(batch)} sequences")
def test_pooler(dtype: torch.dtype, width: int, columns: int, options: str, batch: list[int]) -> None:
    """The pooler is part of the rows' kernel, or a kernel after it for widths at which none does both."""
    rows, B = sum(batch) + 3, len(batch)
    operands = NormOperands.draw(rows, width, dtype, options)
    weight = normal(columns, width, dtype=dtype, seed=6) / width**0.5
    bias = normal(columns, dtype=dtype, seed=7)
    cu_seqlens = torch.tensor([0, *batch], device=DEVICE).cumsum(0).int()

    def launch(*pooler: object) -> tuple[torch.Tensor, torch.Tensor]:
        (y, y_buffer), (total, total_buffer) = (
            poisoned_output((rows, width), torch.float32),
            poisoned_output((rows, width), dtype),
        )
        call(
            "padfreeLayerNormFp32", *operands.tensors(), None, total if "sum" in options else None, Int64(rows), width,
            Float(EPS), int(operands.rms), DATA_TYPES[dtype], y, None, cu_seqlens, B, *pooler, 0,
        )  # fmt: skip
        torch.cuda.synchronize()
        assert_guards(y_buffer)
        assert_guards(total_buffer)
        return y, total

    plain, plain_sum = launch(None, None, None, 0)
    pooled, buffer = poisoned_output((B, columns), torch.float32)
    again, _ = poisoned_output((B, columns), torch.float32)
    beside, beside_sum = launch(weight, bias, pooled, columns)
    launch(weight, bias, again, columns)
    assert_guards(buffer)
    assert torch.equal(beside, plain)
    assert "sum" not in options or torch.equal(beside_sum, plain_sum)
    assert torch.equal(pooled, again)
    starts, ends = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    first = torch.where((starts < ends)[:, None], plain[starts].to(dtype).double(), 0.0)
    truth = torch.tanh(first @ weight.double().T + bias.double())
    step = torch.finfo(dtype).eps  # a row may be rounded the other way, as its sums are added in another order
    torch.testing.assert_close(pooled.double(), truth, rtol=0, atol=step * 4)
