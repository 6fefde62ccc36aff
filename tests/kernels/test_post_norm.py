"""Sums of a residual and a norm, and their moments, against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import ctypes

import pytest
import torch

from tests.support.launchers import DATA_TYPES, call

from .cases import DEVICE, assert_accurate, assert_guards, assert_same_in_a_graph, poisoned_output
from .norm_operands import norm_rows, normal
from .test_linear_norms import moments_of

EPSILON = 1e-6
TYPES = [torch.float16, torch.bfloat16]
WIDTHS = [64, 128, 640, 768, 832, 1024, 1152, 2048, 2304, 3840, 4096]


def post_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    gamma: torch.Tensor,
    y: torch.Tensor,
    moments: torch.Tensor | None = None,
) -> None:
    """y = residual + the RMS norm of x times gamma; moments [E/64, T, 2] are those of y."""
    call("padfreePostNorm", x, residual, gamma, y, moments, *x.shape, ctypes.c_float(EPSILON), DATA_TYPES[x.dtype])


def operands(tokens: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of very different lengths, a residual far from a mean of 0, and gamma."""
    x = normal(tokens, width, dtype=torch.float32, seed=1) * 8 * normal(tokens, 1, dtype=torch.float32, seed=2).exp2()
    x[::5] = 0
    return x.to(dtype), normal(tokens, width, dtype=dtype, seed=3) * 3 + 20, normal(width, dtype=dtype, seed=4)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_post_norm(dtype: torch.dtype, width: int) -> None:
    for tokens in (1, 7, 128, 513):
        x, residual, gamma = operands(tokens, width, dtype)
        y, buffer = poisoned_output((tokens, width), dtype)
        moments, moments_buffer = poisoned_output((width // 64, tokens, 2), torch.float32)
        post_norm(x, residual, gamma, y, moments)
        torch.cuda.synchronize()
        assert_guards(buffer)
        assert_guards(moments_buffer)
        plain, truth = (
            residual.to(kind) + norm_rows(x.to(kind), gamma.to(kind), None, True, EPSILON)
            for kind in (dtype, torch.float64)
        )
        assert_accurate(y, plain, truth)
        # Of the rounded rows: all but the rounding of float32 is exact.
        torch.testing.assert_close(moments.double(), moments_of(y), rtol=2e-5, atol=1e-5)
        alone, buffer = poisoned_output((tokens, width), dtype)
        post_norm(x, residual, gamma, alone)
        torch.cuda.synchronize()
        assert_guards(buffer)
        assert torch.equal(alone, y)


def test_a_graph_gives_the_same_bits() -> None:
    x, residual, gamma = operands(4802, 768, torch.bfloat16)

    def run(stream: torch.Tensor, *, separately: bool) -> torch.Tensor:
        for _ in range(4):
            y = torch.empty_like(stream)
            post_norm(x, stream, gamma, y, torch.empty(12, len(x), 2, device=DEVICE))
            if separately:
                torch.cuda.synchronize()
            stream.copy_(y)
        return stream

    assert_same_in_a_graph(run, residual)


def test_more_elements_than_an_int_counts() -> None:
    """2^31 elements lie before the last rows."""
    tokens, width = 530_000, 4096
    last, added, gamma = operands(5, width, torch.bfloat16)
    x, residual = (torch.zeros(tokens, width, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    x[-5:], residual[-5:] = last, added
    y, expected = torch.full_like(x, float("nan")), torch.empty_like(last)
    post_norm(x, residual, gamma, y)
    post_norm(last, added, gamma, expected)
    assert torch.equal(y[-5:], expected)
    assert bool((y[:-5] == 0).all())


@pytest.mark.parametrize("width", [32, 96, 4160])
def test_rejects_widths_without_a_kernel(width: int) -> None:
    x = torch.zeros(4, width, device=DEVICE, dtype=torch.float16)
    with pytest.raises(RuntimeError):
        post_norm(x, x, x[0], torch.empty_like(x))
