"""Norms of rows in half precision that leave in float32: what is rounded to the rows in half precision.

And rows of sequences' first tokens, in half precision again, beside those in float32.
"""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import DATA_TYPES, Float, Int64, call

from .cases import DEVICE, assert_guards, poisoned
from .norm_operands import NormOperands

WIDTHS = [8, 64, 99, 100, 384, 512, 768, 1024, 1280, 2048, 4096, 5000, 5001]
OPTIONS = ["", "bias residual beta sum", "residual beta", "rms residual sum"]
EPS = 1e-5
WITHIN = 1e-5
"""How far rows may be from the truth in float64, beside its largest number."""


def offsets(rows: int) -> torch.Tensor:
    """Of five sequences, two of them empty, with filler behind them where there are rows for it."""
    ends = [0, rows // 3, rows // 3, rows // 2, rows, rows] if rows < 100 else [0, 0, 17, 100, 100, rows - 5]
    return torch.tensor(ends, device=DEVICE, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [0, 1, 133])
def test_layer_norm(dtype: torch.dtype, width: int, options: str, rows: int) -> None:
    operands, buffers, sums = NormOperands.drawn(rows, width, dtype, options), [], []
    cu_seqlens = offsets(rows)
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:]

    def launch(y: torch.Tensor | None, wide: torch.Tensor, first: torch.Tensor | None = None) -> None:
        total, buffer = poisoned((rows, width), dtype)
        sums.append(total)
        buffers.append(buffer)
        call(
            "padfreeLayerNormFp32", *operands.tensors(), y, total if "sum" in options else None,
            Int64(rows), width, Float(EPS), int(operands.rms), DATA_TYPES[dtype], wide, first, cu_seqlens, len(starts),
        )  # fmt: skip

    wide = torch.float32
    made = {name: poisoned((rows, width), kind) for name, kind in
            (("y", dtype), ("beside", wide), ("alone", wide), ("with_first", wide))}  # fmt: skip
    made["first"] = poisoned((len(starts), width), dtype)
    launch(made["y"][0], made["beside"][0])
    launch(None, made["alone"][0])
    launch(None, made["with_first"][0], made["first"][0])
    torch.cuda.synchronize()
    for buffer in (*buffers, *(buffer for _, buffer in made.values())):
        assert_guards(buffer)
    y, beside, alone, with_first, first = (result for result, _ in made.values())
    assert torch.equal(alone, beside)
    assert torch.equal(with_first, beside)
    assert torch.equal(beside.to(dtype), y)
    expected = torch.zeros_like(first)
    expected[starts < ends] = y[starts[starts < ends].long()]
    assert not rows or torch.equal(first, expected)  # without rows y_fp32 is null, by which the launcher goes
    truth = operands.truth(EPS)
    assert not rows or bool(((beside.double() - truth).abs() <= WITHIN * truth.abs().max()).all())
    assert "sum" not in options or all(torch.equal(total, sums[0]) for total in sums)
