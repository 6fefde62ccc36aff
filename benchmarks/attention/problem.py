# SPDX-License-Identifier: Apache-2.0
"""A case of the attention benchmark on the GPU, and what an implementation makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.support.launchers import Positions

from .cases import Case

DEVICE = "cuda"


class UnsupportedError(Exception):
    """What a peer cannot do, said in its message."""


@dataclass(frozen=True)
class Problem:
    """A case on the GPU: input sets qkv [T, 3, H, D] fp16 and cu_seqlens int32 [B+1]."""

    case: Case
    inputs: tuple[torch.Tensor, ...]
    cu_seqlens: torch.Tensor

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float(self.case.head_size**-0.5)

    @property
    def positions(self) -> Positions:
        """The case's window, and its bias in tensors on the GPU: slopes as ALiBi has them, or random distances."""
        places, heads = self.case.places, self.case.heads
        if places.bias == "slope":
            slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float32) / heads)
            return Positions(places.window, slopes=slopes.to(DEVICE))
        if places.bias == "distance":
            generator = torch.Generator().manual_seed(1)
            table = torch.randn(heads, 2 * places.bias_range + 1, generator=generator)
            return Positions(places.window, distance_bias=table.to(DEVICE))
        return Positions(places.window)

    def operands(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of Q, K and V [T, H, D] in one input set."""
        q, k, v = self.inputs[index].unbind(1)
        return q, k, v


def rows(output: torch.Tensor) -> torch.Tensor:
    """Packed output [T, H, D] or [T, E] as [T, E]."""
    return output.reshape(len(output), -1)


@dataclass(frozen=True)
class Launch:
    """One implementation, ready to run: `run` enqueues attention over an input set on the current stream.

    `packed` brings what `run` returned to [T, E], outside of the timed part. checked: whether it computes what the case
    asks for; otherwise it is there to compare times.
    """

    run: Callable[[int], torch.Tensor]
    packed: Callable[[torch.Tensor], torch.Tensor] = rows
    checked: bool = True


Prepare = Callable[[Problem], Launch]


def score_bias(positions: Positions, length: int, heads: slice, dtype: torch.dtype) -> torch.Tensor:
    """What positions add to the scores [heads, length, length] of a sequence; -infinity outside of the window."""
    places = torch.arange(length, device=DEVICE)
    distance = places[None, :] - places[:, None]
    left, right = (length if side < 0 else side for side in positions.window)
    bias = torch.zeros(1, length, length, device=DEVICE, dtype=dtype)
    if positions.slopes is not None:
        bias = -positions.slopes[heads, None, None].to(dtype) * distance.abs()
    if positions.distance_bias is not None:
        reach = positions.bias_range
        bias = positions.distance_bias[heads].to(dtype)[:, distance.clamp(-reach, reach) + reach]
    return bias.masked_fill((distance < -left) | (distance > right), -torch.inf)


def padding(problem: Problem) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from packed [T, H, D] to padded [B, H, S, D], zeros in the padding."""
    case = problem.case
    sequence, slot = slots(case)

    def pad(x: torch.Tensor) -> torch.Tensor:
        padded = x.new_zeros(len(case.lengths), case.heads, case.longest, case.head_size)
        padded[sequence, :, slot] = x
        return padded

    return pad


def unpadding(problem: Problem) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from padded [B, H, S, D] to packed [T, E]."""
    sequence, slot = slots(problem.case)
    return lambda padded: padded[sequence, :, slot].flatten(1)


def slots(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every token its sequence and its place in it, int64 [T] each."""
    lengths = torch.tensor(case.lengths, device=DEVICE)
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=DEVICE), lengths)
    starts = lengths.cumsum(0) - lengths
    return sequence, torch.arange(case.tokens, device=DEVICE) - starts[sequence]
