"""Norms of rows in half precision that leave in float32: what is rounded to the rows in half precision."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import DATA_TYPES, Float, Int64, call

from .cases import DEVICE, assert_guards, poisoned
from .test_rows import norm_rows, normal

WIDTHS = [8, 64, 99, 100, 384, 512, 768, 1024, 1280, 2048, 4096, 5000, 5001]
OPTIONS = ["", "bias residual beta sum", "residual beta", "rms residual sum"]
EPS = 1e-5
WITHIN = 1e-5
"""How far rows may be from the truth in float64, beside its largest number."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rows", [0, 1, 133])
def test_layer_norm(dtype: torch.dtype, width: int, options: str, rows: int) -> None:
    x = normal(rows, width, dtype=dtype, seed=1) * 3 + 1
    bias = normal(width, dtype=dtype, seed=2) if "bias" in options else None
    residual = normal(rows, width, dtype=dtype, seed=3) if "residual" in options else None
    gamma = normal(width, dtype=dtype, seed=4)
    beta = normal(width, dtype=dtype, seed=5) if "beta" in options else None
    rms, buffers, sums = "rms" in options, [], []

    def launch(y: torch.Tensor | None, wide: torch.Tensor | None) -> None:
        total, buffer = poisoned((rows, width), dtype)
        sums.append(total)
        buffers.append(buffer)
        call(
            "padfreeLayerNormFp32", x, bias, residual, gamma, beta, y, total if "sum" in options else None,
            Int64(rows), width, Float(EPS), int(rms), DATA_TYPES[dtype], wide,
        )  # fmt: skip

    made = {name: poisoned((rows, width), kind) for name, kind in
            (("plain", dtype), ("y", dtype), ("beside", torch.float32), ("alone", torch.float32))}  # fmt: skip
    launch(made["plain"][0], None)
    launch(made["y"][0], made["beside"][0])
    launch(None, made["alone"][0])
    torch.cuda.synchronize()
    for buffer in (*buffers, *(buffer for _, buffer in made.values())):
        assert_guards(buffer)
    plain, y, beside, alone = (result for result, _ in made.values())
    assert torch.equal(y, plain)
    assert torch.equal(alone, beside)
    assert torch.equal(beside.to(dtype), y)
    truth_sum = torch.zeros(rows, width, dtype=torch.float64, device=DEVICE)
    for part in (x, bias, residual):
        truth_sum = truth_sum if part is None else truth_sum + part.double()
    truth = norm_rows(truth_sum, gamma.double(), None if beta is None else beta.double(), rms, EPS)
    assert not rows or bool(((beside.double() - truth).abs() <= WITHIN * truth.abs().max()).all())
    assert "sum" not in options or all(torch.equal(total, sums[0]) for total in sums)
