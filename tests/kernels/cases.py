"""Length patterns, poisoned memory and error measures that all kernel tests share."""

# SPDX-License-Identifier: Apache-2.0
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.support.launchers import NoKernel, has_hopper_kernels

DEVICE = "cuda"
needs_tilings = pytest.mark.skipif(
    torch.cuda.is_available() and not has_hopper_kernels(),
    reason="PadfreeLinear has tilings on Hopper alone",
)
GUARD = 4096
"""Elements of poison before and after every output."""

POISON = {torch.int32: -(2**31) + 7}


def if_compiled(check: Callable[..., object], *arguments: Any, **named: Any) -> None:
    """Runs a check of a GEMM unless no kernel has its tiling; test_linear_menu checks which tilings exist."""
    with contextlib.suppress(NoKernel):
        check(*arguments, **named)


LENGTHS = {
    "one": [1],
    "tile edges": [63, 64, 65, 127, 128, 129, 31, 32, 33],
    "mixed": [5, 200, 1, 77, 64, 300, 16, 128],
    "empty between": [0, 3, 0, 0, 70, 0],
    "all empty": [0, 0, 0],
    "one long": [8, 12, 1100, 9, 30, 3],
    "many short": [1 + (7 * i) % 40 for i in range(120)],
}
"""Sequence lengths by name: 0, 1, a tile and one off it, one long among short ones, many short ones."""

FLOOR = {torch.float32: 1e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
"""Relative error that rounding the result to the type alone can cause (half a unit in the last place)."""


def generator(seed: int = 0) -> torch.Generator:
    """A seeded generator on the GPU."""
    return torch.Generator(device=DEVICE).manual_seed(seed)


def cumulative(lengths: Sequence[int]) -> torch.Tensor:
    """cu_seqlens int32 [B+1] of lengths."""
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(DEVICE, torch.int32)


def poisoned_output(shape: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """An output full of poison inside a buffer with guard bands: returns the view to write to, and the whole buffer."""
    count = int(torch.Size(shape).numel())
    buffer = torch.full((count + 2 * GUARD,), POISON.get(dtype, float("nan")), dtype=dtype, device=DEVICE)
    return buffer[GUARD : GUARD + count].view(*shape), buffer


def assert_guards(buffer: torch.Tensor) -> None:
    """Checks that nothing was written outside the output."""
    bands = torch.cat([buffer[:GUARD], buffer[-GUARD:]])
    intact = bands == POISON[bands.dtype] if bands.dtype in POISON else bands.isnan()
    assert bool(intact.all()), "the kernel wrote outside its output"


def with_filler(x: torch.Tensor, filler: int) -> torch.Tensor:
    """Tokens x [T, ...] followed by `filler` tokens of NaN, which must not affect any result."""
    tail = torch.full((filler, *x.shape[1:]), float("nan"), dtype=x.dtype, device=x.device)
    return torch.cat([x, tail])


def assert_accurate(ours: torch.Tensor, plain: torch.Tensor, truth: torch.Tensor) -> None:
    """Checks that our error is at most twice that of plain PyTorch in the same type, in norm and at worst.

    Errors are those against float64 truth. Below FLOOR, where rounding to the type dominates, twice FLOOR is allowed.
    """
    assert ours.shape == truth.shape
    if truth.numel() == 0:
        return
    assert bool(ours.isfinite().all()), "the result holds NaN or infinity"
    floor = FLOOR[ours.dtype]
    ours64, plain64 = ours.double(), plain.double()
    norm, peak = truth.norm().clamp(min=1e-30), truth.abs().max().clamp(min=1e-30)
    error, plain_error = (ours64 - truth).norm() / norm, (plain64 - truth).norm() / norm
    assert error <= 2 * max(float(plain_error), floor), f"relative error {error:.2e}, PyTorch {plain_error:.2e}"
    worst, plain_worst = (ours64 - truth).abs().max() / peak, (plain64 - truth).abs().max() / peak
    assert worst <= 2 * max(float(plain_worst), floor), f"worst error {worst:.2e}, PyTorch {plain_worst:.2e}"


def assert_same_in_a_graph(run: Callable[..., torch.Tensor], start: torch.Tensor) -> None:
    """Checks that replays of a CUDA graph give the bits of launches that wait for each other; `run` works on x."""
    expected = run(start.clone(), separately=True)
    assert bool(expected.isfinite().all())
    x = start.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x, separately=False)
    for _ in range(20):
        x.copy_(start)
        graph.replay()
        assert torch.equal(x, expected)
