"""What all tests of attention's kernels share: types, kernels, and the truth for every kind of position term."""

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

import pytest
import torch

from tests.support.launchers import Positions, has_hopper_kernels

from .cases import DEVICE, generator

TYPES = [torch.float16, torch.bfloat16, torch.float32]
ROWS = 1024
"""Query rows whose scores are computed at a time for the truth."""


def choose(kernel: str, dtype: torch.dtype) -> str:
    """The kernel to launch; skips the test where there is none: only Hopper has sm90's and short, and fp32 has one."""
    if kernel != "auto" and dtype == torch.float32:
        pytest.skip("fp32 has one kernel")
    if kernel in ("sm90", "short") and not has_hopper_kernels():
        pytest.skip(f"the {kernel} kernel needs a Hopper GPU")
    return kernel


def slopes(heads: int, steepest: float = 0.5) -> torch.Tensor:
    """ALiBi's slopes: powers of two, from the steepest down, fp32 [H]."""
    return steepest * 2.0 ** -torch.arange(heads, device=DEVICE, dtype=torch.float32)


def distance_bias(heads: int, reach: int, spread: float = 2.0, seed: int = 3) -> torch.Tensor:
    """Random values for all distances up to `reach` on both sides, fp32 [H, 2 * reach + 1]."""
    return torch.randn(heads, 2 * reach + 1, device=DEVICE, generator=generator(seed)) * spread


def score_bias(positions: Positions, rows: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores, -inf outside the window: [H, rows, keys], or [1, rows, keys] without a bias."""
    distance = keys - rows[:, None]
    if positions.slopes is not None:
        added = -positions.slopes.to(dtype)[:, None, None] * distance.abs()
    elif positions.distance_bias is not None:
        reach = positions.bias_range
        added = positions.distance_bias.to(dtype)[:, distance.clamp(-reach, reach) + reach]
    else:
        added = torch.zeros(1, *distance.shape, device=DEVICE, dtype=dtype)
    left, right = positions.window
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= -distance > left
    if right >= 0:
        hidden |= distance > right
    return added.masked_fill(hidden, float("-inf"))


def position_scores(
    q: torch.Tensor, k: torch.Tensor, positions: Positions, rows: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """What a disentangled bias adds to scores [H, rows, keys], for q [rows, H, D] and k [keys, H, D]."""
    reach, heads = positions.bias_range, q.shape[1]
    index = ((keys - rows[:, None]).clamp(-reach, reach) + reach).expand(heads, -1, -1)
    total = torch.zeros(index.shape, device=DEVICE, dtype=q.dtype)
    if positions.k_position is not None:
        table = positions.k_position.to(q.dtype).unflatten(1, (heads, -1))
        total += torch.einsum("qhd,thd->hqt", q, table).gather(2, index)
    if positions.q_position is not None:
        table = positions.q_position.to(q.dtype).unflatten(1, (heads, -1))
        total += torch.einsum("khd,thd->htk", k, table).gather(1, index)
    return total


def attend(
    operands: Sequence[torch.Tensor], lengths: Sequence[int], scale: float, positions: Positions, dtype: torch.dtype
) -> torch.Tensor:
    """softmax(QK^T * scale + bias)V of q [T, H, D], k and v [T, KVH, D], each sequence by itself, as [T, H*D].

    Operands and the probabilities that multiply V are rounded to the given type; scores and softmax are computed in
    float64 for float64 and in float32 otherwise, as in PyTorch's fused attention.
    """
    inner = torch.float64 if dtype == torch.float64 else torch.float32
    ratio = operands[0].shape[1] // operands[1].shape[1]
    q, k, v = (operand.to(dtype) for operand in operands)
    k, v = (part.repeat_interleave(ratio, dim=1) for part in (k, v))
    results, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        keys = torch.arange(length, device=DEVICE)
        for rows in keys.split(ROWS):
            own, others = q[part][rows].to(inner), k[part].to(inner)
            scores = torch.einsum("qhd,khd->hqk", own, others)
            if positions.bias == "disentangled":
                scores += position_scores(own, others, positions, rows, keys)
            scores *= scale
            weights = (scores + score_bias(positions, rows, keys, inner)).softmax(-1)
            results.append(torch.einsum("hqk,khd->qhd", weights.to(dtype), v[part]).flatten(1))
        start += length
    return torch.cat(results)
