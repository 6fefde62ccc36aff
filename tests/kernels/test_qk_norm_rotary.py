"""Norms of heads and the rotary embedding behind them, in one kernel, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import qk_norm_rotary

from .cases import DEVICE, assert_accurate, assert_guards, assert_same_in_a_graph, generator, poisoned_output
from .test_rotary import LONGEST, TYPES, rotate

EPSILON = 1e-6


def norm(
    qkv: torch.Tensor, gammas: tuple[torch.Tensor, torch.Tensor], heads: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """The RMS norms of all heads [T, (H + KVH) * D]: as transformers computes them, rounded twice; float64 is not."""
    size, count = gammas[0].numel(), sum(heads)
    split = qkv[:, : count * size].to(torch.promote_types(dtype, torch.float32)).unflatten(1, (count, size))
    scaled = (split * (split.square().mean(-1, keepdim=True) + EPSILON).rsqrt()).to(dtype)
    gamma = torch.stack([gammas[0].to(dtype)] * heads[0] + [gammas[1].to(dtype)] * heads[1])
    return (scaled * gamma).flatten(1)


def operands(
    tokens: int, heads: tuple[int, int], size: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor]:
    """qkv [T, W] with rows of very different lengths and NaN for V, both gammas, positions and frequencies."""
    columns, pairs = sum(heads) * size, size // 2
    qkv = torch.randn(tokens, width, device=DEVICE, generator=generator(1))
    qkv *= 2.0 ** torch.randint(-6, 7, (tokens, 1), device=DEVICE, generator=generator(2))
    qkv[:, columns:] = float("nan")
    one, other = torch.rand(2, size, device=DEVICE, generator=generator(3)).to(dtype) + 0.5
    positions = torch.randint(0, LONGEST, (tokens,), device=DEVICE, dtype=torch.int32, generator=generator(4))
    frequencies = (10000.0 ** -(torch.arange(pairs, device=DEVICE, dtype=torch.float64) / pairs)).float()
    frequencies[-1] = 0
    return qkv.to(dtype), (one, -other), positions, frequencies


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "size", "width"),
    [((16, 8), 128, 4096), ((3, 1), 256, 1280), ((12, 12), 64, 2304), ((32, 8), 80, 3840), ((1, 1), 16, 48),
     ((5, 5), 32, 480), ((2, 1), 512, 2048), ((2, 2), 96, 576), ((1, 1), 128, 257), ((3, 1), 6, 30), ((1, 1), 2, 5),
     ((2, 1), 640, 2560), ((64, 8), 128, 10240)],
)  # fmt: skip
def test_qk_norm_rotary(dtype: torch.dtype, interleaved: bool, heads: tuple[int, int], size: int, width: int) -> None:
    count = sum(heads)
    for tokens in (1, 7, 128, 513):
        qkv, gammas, positions, frequencies = operands(tokens, heads, size, width, dtype)
        before = qkv.clone()
        y, buffer = poisoned_output((tokens, count * size), dtype)
        qk_norm_rotary(qkv, gammas, positions, frequencies, y, heads=heads, epsilon=EPSILON, interleaved=interleaved)
        torch.cuda.synchronize()
        assert_guards(buffer)
        assert torch.equal(qkv.nan_to_num(), before.nan_to_num())
        angle = positions[:, None].float() * frequencies
        plain, truth = (
            rotate(norm(qkv, gammas, heads, kind), angle, count, size, interleaved=interleaved, dtype=kind)
            for kind in (dtype, torch.float64)
        )
        assert_accurate(y, plain, truth)


def test_heads_of_zeros_stay_zeros() -> None:
    heads, size = (16, 8), 128
    qkv, gammas, positions, frequencies = operands(33, heads, size, 4096, torch.bfloat16)
    qkv[5, : 3 * size], qkv[6] = 0, 0
    y, _ = poisoned_output((33, 24 * size), torch.bfloat16)
    qk_norm_rotary(qkv, gammas, positions, frequencies, y, heads=heads, epsilon=EPSILON)
    assert bool((y[5, : 3 * size] == 0).all())
    assert bool((y[6] == 0).all())
    assert bool(y.isfinite().all())


def test_a_graph_gives_the_same_bits() -> None:
    heads, size = (16, 8), 128
    qkv, gammas, positions, frequencies = operands(4802, heads, size, 4096, torch.bfloat16)
    qkv[:, 24 * size :] = 0

    def run(x: torch.Tensor, *, separately: bool) -> torch.Tensor:
        for _ in range(4):
            y = torch.empty(len(x), 24 * size, device=DEVICE, dtype=x.dtype)
            qk_norm_rotary(x, gammas, positions, frequencies, y, heads=heads, epsilon=EPSILON)
            if separately:
                torch.cuda.synchronize()
            x[:, : 24 * size] = y
        return x

    assert_same_in_a_graph(run, qkv)


def test_more_elements_than_an_int_counts() -> None:
    """2^31 elements lie before the last rows."""
    heads, size, tokens = (64, 8), 128, 220_000
    qkv = torch.zeros(tokens, 10240, device=DEVICE, dtype=torch.bfloat16)
    last, gammas, positions, frequencies = operands(5, heads, size, 10240, torch.bfloat16)
    qkv[-5:] = last
    everywhere = torch.zeros(tokens, device=DEVICE, dtype=torch.int32)
    everywhere[-5:] = positions
    y = torch.full((tokens, 72 * size), float("nan"), device=DEVICE, dtype=torch.bfloat16)
    qk_norm_rotary(qkv, gammas, everywhere, frequencies, y, heads=heads, epsilon=EPSILON)
    expected = torch.empty(5, 72 * size, device=DEVICE, dtype=torch.bfloat16)
    qk_norm_rotary(last, gammas, positions, frequencies, expected, heads=heads, epsilon=EPSILON)
    assert torch.equal(y[-5:], expected)
    assert bool((y[:-5] == 0).all())


@pytest.mark.parametrize("sizes", [((2, 1), 64, 191), ((2, 1), 7, 64), ((0, 1), 64, 256), ((1, 0), 64, 256)])
def test_rejects_sizes_that_do_not_fit(sizes: tuple[tuple[int, int], int, int]) -> None:
    heads, size, width = sizes
    qkv, gamma = torch.zeros(4, width, device=DEVICE), torch.zeros(size, device=DEVICE)
    positions = torch.zeros(4, device=DEVICE, dtype=torch.int32)
    with pytest.raises(RuntimeError):
        qk_norm_rotary(
            qkv, (gamma, gamma), positions, torch.zeros(64, device=DEVICE), torch.empty_like(qkv), heads=heads,
            epsilon=EPSILON,
        )  # fmt: skip
