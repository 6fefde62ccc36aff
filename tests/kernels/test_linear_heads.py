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

HEAD, WIDE = 128, 256
EPSILON = 1e-3
"""So large that a missing one shows."""
WIDE_TILINGS = [
    *(tiling for tiling in TILINGS if tiling[1] % 2 == 0),
    *((16, 2, 4, 1), (64, 4, 2, 1), (96, 4, 1, 1), (192, 2, 2, 1), (224, 2, 2, 1)),
]
"""Those with two halves of a head side by side."""


def norm_heads(columns: torch.Tensor, scale: torch.Tensor, size: int = HEAD) -> torch.Tensor:
    """RMS norms of the heads [T, H, size] that the scale has columns for, as transformers computes them."""
    heads = columns[:, : len(scale)].to(torch.promote_types(columns.dtype, torch.float32)).unflatten(1, (-1, size))
    normed = (heads * (heads.square().mean(-1, keepdim=True) + EPSILON).rsqrt()).to(columns.dtype)
    return torch.cat([normed.flatten(1) * scale.to(columns.dtype), columns[:, len(scale) :]], 1)


def check(
    tokens: int,
    depth: int,
    features: int,
    *,
    heads: int,
    size: int = HEAD,
    dtype: torch.dtype = torch.bfloat16,
    with_bias: bool = True,
    norm: str = "rms",
    tiling: tuple[int, int, int, int] = AUTO,
) -> torch.Tensor:
    """Checks a GEMM whose first columns are so many heads of this size; norm of x: "", "layer" or "rms"."""
    x = normal(tokens, depth, seed=1) * normal(tokens, 1, seed=7).exp2() + (1 if norm else 0)
    x = inside_poison(x.to(dtype))
    weight = inside_poison((normal(depth, features, seed=2) * depth**-0.5).to(dtype))
    bias = normal(features, seed=3).to(dtype) if with_bias else None
    scale = inside_poison(normal(1, heads * size, seed=4).to(dtype))[0]
    rotation = Rotation(positions_of(tokens), frequencies(heads * size // 2), scale, EPSILON, wide_heads=size == WIDE)
    moments = Moments(of_x=floats(moments_of(x)), rms=norm == "rms") if norm else None
    y, buffer = poisoned_output((tokens, features), dtype)
    linear(x, weight, y, bias=bias, moments=moments, rotation=rotation, tiling=tiling)
    torch.cuda.synchronize()
    assert_guards(buffer)

    def compute(dtype: torch.dtype) -> torch.Tensor:
        return rotate(norm_heads(gemm_of(x, weight, bias, norm, dtype), scale, size), rotation)

    assert_accurate(y, compute(dtype), compute(torch.float64))
    return y


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tilings(tiling: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    if_compiled(check, 333, 320, 400, heads=3, dtype=dtype, tiling=tiling)
    if_compiled(check, 2900, 768, 1536, heads=8, dtype=dtype, tiling=tiling)


@pytest.mark.parametrize("tiling", WIDE_TILINGS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tilings_of_wide_heads(tiling: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    if_compiled(check, 333, 64, 528, heads=1, size=WIDE, dtype=dtype, tiling=tiling)  # a stage: blocks part most
    if_compiled(check, 2900, 768, 1280, heads=4, size=WIDE, dtype=dtype, tiling=tiling)
    if_compiled(check, 2900, 320, 1536, heads=3, size=WIDE, dtype=dtype, tiling=tiling)


@pytest.mark.parametrize("size", [HEAD, WIDE])
@pytest.mark.parametrize("tokens", [1, 7, 15, 16, 17, 63, 65, 127, 129, 255, 257, 511, 513])
def test_tokens(tokens: int, size: int) -> None:
    check(tokens, 1024, 4096, heads=24 * HEAD // size, size=size)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("norm", ["", "layer", "rms"])
@pytest.mark.parametrize(("heads", "size"), [(1, HEAD), (5, HEAD), (6, HEAD), (1, WIDE), (2, WIDE), (3, WIDE)])
def test_heads(dtype: torch.dtype, with_bias: bool, norm: str, heads: int, size: int) -> None:
    check(1403, 256, 768, heads=heads, size=size, dtype=dtype, with_bias=with_bias, norm=norm)


@pytest.mark.parametrize("size", [HEAD, WIDE])
@pytest.mark.parametrize("tokens", [4915, 70_000])
def test_many_tokens(tokens: int, size: int) -> None:
    check(tokens, 1024, 4096, heads=24 * HEAD // size, size=size, with_bias=False)


@pytest.mark.parametrize("tiling", [AUTO, (64, 2, 1, 1), (224, 1, 2, 1)], ids=str)
def test_same_bits_again(tiling: tuple[int, int, int, int]) -> None:
    first = check(1403, 1024, 4096, heads=24, tiling=tiling)
    for _ in range(5):
        assert torch.equal(check(1403, 1024, 4096, heads=24, tiling=tiling), first)


@pytest.mark.parametrize("tiling", [AUTO, (32, 2, 1, 1), (64, 2, 2, 1), (192, 2, 1, 1), (224, 2, 1, 1)], ids=str)
def test_same_bits_of_wide_heads_again(tiling: tuple[int, int, int, int]) -> None:
    """Many tiles for each block, of few stages."""
    first = check(9000, 64, 4096, heads=12, size=WIDE, tiling=tiling)
    for _ in range(5):
        assert torch.equal(check(9000, 64, 4096, heads=12, size=WIDE, tiling=tiling), first)


def test_wide_heads_have_kernels_for_few_tokens() -> None:
    """With clusters of two tiles of features, and no others."""
    for tokens in (16, 32, 48, 64, 96, 128, 160, 176, 192, 224):
        check(40, 256, 512, heads=2, size=WIDE, tiling=(tokens, 2, 1, 1))
        with pytest.raises(NoKernel):
            check(40, 256, 512, heads=2, size=WIDE, tiling=(tokens, 1, 2, 1))


@pytest.mark.parametrize("size", [HEAD, WIDE])
def test_heads_of_zeros_stay_zeros(size: int) -> None:
    x = torch.zeros(40, 256, device="cuda", dtype=torch.bfloat16)
    weight, scale = normal(256, 384, seed=2).to(x.dtype), normal(256, seed=4).to(x.dtype)
    y, _ = poisoned_output((40, 384), x.dtype)
    rotation = Rotation(positions_of(40), frequencies(128), scale, EPSILON, wide_heads=size == WIDE)
    linear(x, weight, y, rotation=rotation)
    assert bool((y == 0).all())


@pytest.mark.parametrize(
    ("columns", "tiling", "wide_heads"),
    [
        *((columns, AUTO, False) for columns in (192, 64)),
        *((columns, AUTO, True) for columns in (384, 128)),
        *((256, tiling, wide) for tiling in (MMA, (192, 1, 1, 0)) for wide in (False, True)),
        (256, (208, 2, 1, 1), True),
        (256, (192, 1, 2, 1), True),
    ],
    ids=str,
)
def test_rejects_what_it_does_not_compute(columns: int, tiling: tuple[int, int, int, int], wide_heads: bool) -> None:
    """Parts of heads, the general kernels, resident input, and tilings without two halves of a head side by side."""
    x = normal(40, 256, seed=1).to(torch.bfloat16)
    weight, scale = normal(256, 384, seed=2).to(x.dtype), normal(columns, seed=4).to(x.dtype)
    rotation = Rotation(positions_of(40), frequencies(columns // 2), scale, EPSILON, wide_heads)
    with pytest.raises((RuntimeError, NoKernel)):
        linear(x, weight, torch.empty(40, 384, device="cuda", dtype=x.dtype), rotation=rotation, tiling=tiling)
