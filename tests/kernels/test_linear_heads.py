"""GEMMs whose first columns are heads that are normed and rotated, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import MMA, Moments, NoKernel, Rotation, linear

from .cases import assert_accurate, assert_guards, if_compiled, needs_tilings, poisoned_output
from .test_linear import AUTO, TYPES, inside_poison
from .test_linear_norms import floats, moments_of
from .test_linear_pairs import TILINGS, frequencies, gemm_of, normal, positions_of, rotate

pytestmark = needs_tilings

HEAD = 128
EPSILON = 1e-3
"""So large that a missing one shows."""


def norm_heads(columns: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """RMS norms of the heads [T, H, 128] that the scale has columns for, as transformers computes them."""
    heads = columns[:, : len(scale)].to(torch.promote_types(columns.dtype, torch.float32)).unflatten(1, (-1, HEAD))
    normed = (heads * (heads.square().mean(-1, keepdim=True) + EPSILON).rsqrt()).to(columns.dtype)
    return torch.cat([normed.flatten(1) * scale.to(columns.dtype), columns[:, len(scale) :]], 1)


def check(
    tokens: int,
    depth: int,
    features: int,
    *,
    heads: int,
    dtype: torch.dtype = torch.bfloat16,
    with_bias: bool = True,
    norm: str = "rms",
    tiling: tuple[int, int, int, int] = AUTO,
) -> torch.Tensor:
    """Checks a GEMM whose first columns are so many heads; norm of x: "", "layer" or "rms"."""
    x = normal(tokens, depth, seed=1) * normal(tokens, 1, seed=7).exp2() + (1 if norm else 0)
    x = inside_poison(x.to(dtype))
    weight = inside_poison((normal(depth, features, seed=2) * depth**-0.5).to(dtype))
    bias = normal(features, seed=3).to(dtype) if with_bias else None
    scale = inside_poison(normal(1, heads * HEAD, seed=4).to(dtype))[0]
    rotation = Rotation(positions_of(tokens), frequencies(heads * HEAD // 2), scale, EPSILON)
    moments = Moments(of_x=floats(moments_of(x)), rms=norm == "rms") if norm else None
    y, buffer = poisoned_output((tokens, features), dtype)
    linear(x, weight, y, bias=bias, moments=moments, rotation=rotation, tiling=tiling)
    torch.cuda.synchronize()
    assert_guards(buffer)

    def compute(dtype: torch.dtype) -> torch.Tensor:
        return rotate(norm_heads(gemm_of(x, weight, bias, norm, dtype), scale), rotation)

    assert_accurate(y, compute(dtype), compute(torch.float64))
    return y


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tilings(tiling: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    if_compiled(check, 333, 320, 400, heads=3, dtype=dtype, tiling=tiling)
    if_compiled(check, 2900, 768, 1536, heads=8, dtype=dtype, tiling=tiling)


@pytest.mark.parametrize("tokens", [1, 7, 15, 16, 17, 63, 65, 127, 129, 255, 257, 511, 513])
def test_tokens(tokens: int) -> None:
    check(tokens, 1024, 4096, heads=24)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("norm", ["", "layer", "rms"])
@pytest.mark.parametrize("heads", [1, 5, 6])
def test_heads(dtype: torch.dtype, with_bias: bool, norm: str, heads: int) -> None:
    check(1403, 256, 768, heads=heads, dtype=dtype, with_bias=with_bias, norm=norm)


@pytest.mark.parametrize("tokens", [4915, 70_000])
def test_many_tokens(tokens: int) -> None:
    check(tokens, 1024, 4096, heads=24, with_bias=False)


@pytest.mark.parametrize("tiling", [AUTO, (64, 2, 1, 1), (224, 1, 2, 1)], ids=str)
def test_same_bits_again(tiling: tuple[int, int, int, int]) -> None:
    first = check(1403, 1024, 4096, heads=24, tiling=tiling)
    for _ in range(5):
        assert torch.equal(check(1403, 1024, 4096, heads=24, tiling=tiling), first)


def test_heads_of_zeros_stay_zeros() -> None:
    x = torch.zeros(40, 256, device="cuda", dtype=torch.bfloat16)
    weight, scale = normal(256, 384, seed=2).to(x.dtype), normal(256, seed=4).to(x.dtype)
    y, _ = poisoned_output((40, 384), x.dtype)
    linear(x, weight, y, rotation=Rotation(positions_of(40), frequencies(128), scale, EPSILON))
    assert bool((y == 0).all())


@pytest.mark.parametrize(("columns", "tiling"), [(192, AUTO), (64, AUTO), (256, MMA), (256, (192, 1, 1, 0))], ids=str)
def test_rejects_what_it_does_not_compute(columns: int, tiling: tuple[int, int, int, int]) -> None:
    """Parts of heads, the general kernels, and resident input."""
    x = normal(40, 256, seed=1).to(torch.bfloat16)
    weight, scale = normal(256, 384, seed=2).to(x.dtype), normal(columns, seed=4).to(x.dtype)
    rotation = Rotation(positions_of(40), frequencies(columns // 2), scale, EPSILON)
    with pytest.raises((RuntimeError, NoKernel)):
        linear(x, weight, torch.empty(40, 384, device="cuda", dtype=x.dtype), rotation=rotation, tiling=tiling)
