# SPDX-License-Identifier: Apache-2.0
"""A case of the attention benchmark on the GPU, and what an implementation makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

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

    `packed` brings what `run` returned to [T, E], outside of the timed part.
    """

    run: Callable[[int], torch.Tensor]
    packed: Callable[[torch.Tensor], torch.Tensor] = rows


Prepare = Callable[[Problem], Launch]


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
