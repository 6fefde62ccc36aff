# SPDX-License-Identifier: Apache-2.0
"""A case of the attention benchmark on the GPU, and an implementation that is ready to run on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.support.launchers import Positions

from .cases import Case, PositionTerms

DEVICE = "cuda"
LONGEST_DISTANCE = 512
"""The longest distance of DeBERTa v3-base, for which all its logarithmic buckets are made."""


class UnsupportedError(Exception):
    """A peer cannot do something, which the message names."""


@dataclass(frozen=True)
class Problem:
    """A case on the GPU: input sets qkv fp16 and cu_seqlens int32 [B+1].

    An input set is [T, 3, H, D], or [T, H + 2G, D] where K and V have G heads.
    """

    case: Case
    inputs: tuple[torch.Tensor, ...]
    cu_seqlens: torch.Tensor

    @property
    def scale(self) -> float:
        """What scores are multiplied by; a disentangled bias makes them sums of three products."""
        terms = 3 if self.case.positions.bias == "disentangled" else 1
        return float((terms * self.case.head_size) ** -0.5)

    @property
    def position_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of K's and Q's positions by bucket for a disentangled bias, random fp16 [2 * buckets, H*D]."""
        shape = (2, 2 * self.case.positions.buckets, self.case.heads * self.case.head_size)
        k, q = torch.randn(shape, generator=torch.Generator().manual_seed(1)).half().to(DEVICE)
        return k, q

    @property
    def positions(self) -> Positions:
        """The case's window, and its bias in tensors on the GPU: ALiBi's slopes, or random numbers."""
        indices, heads = self.case.positions, self.case.heads
        if indices.bias == "slope":
            slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float32) / heads)
            return Positions(indices.window, slopes=slopes.to(DEVICE))
        if indices.bias == "distance":
            generator = torch.Generator().manual_seed(1)
            table = torch.randn(heads, 2 * indices.bias_range + 1, generator=generator)
            return Positions(indices.window, distance_bias=table.to(DEVICE))
        if indices.bias == "disentangled":
            bucket = buckets_of(indices).to(DEVICE)
            k, q = (rows[bucket].contiguous() for rows in self.position_rows)
            return Positions(indices.window, k_position=k, q_position=q)
        return Positions(indices.window)

    def operands(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of Q, K and V [T, H, D] in one input set; K and V may have fewer heads."""
        if self.case.kv_heads is None:
            q, k, v = self.inputs[index].unbind(1)
        else:
            q, k, v = self.inputs[index].split([self.case.heads, self.case.kv_heads, self.case.kv_heads], 1)
        return q, k, v


def rows(output: torch.Tensor) -> torch.Tensor:
    """Packed output [T, H, D] or [T, E] as [T, E]."""
    return output.reshape(len(output), -1)


@dataclass(frozen=True)
class Launch:
    """One implementation, ready to run: `run` enqueues attention over an input set on the current stream.

    `pack` turns the result of `run` into [T, E], outside the timed part. checked: whether it computes what the case
    asks for; otherwise only its time is compared.
    """

    run: Callable[[int], torch.Tensor]
    pack: Callable[[torch.Tensor], torch.Tensor] = rows
    checked: bool = True


Prepare = Callable[[Problem], Launch]


def buckets_of(positions: PositionTerms) -> torch.Tensor:
    """DeBERTa v3's bucket of every distance (key minus row) from -bias_range to bias_range, int64."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(positions.bias_range, -positions.bias_range - 1, -1)  # buckets count row minus key
    bucket = make_log_bucket_position(distances, positions.buckets, LONGEST_DISTANCE).long()
    return (bucket + positions.buckets).clamp(0, 2 * positions.buckets - 1)


def biased_scores(
    problem: Problem, queries: torch.Tensor, keys: torch.Tensor, heads: slice, positions: Positions
) -> torch.Tensor:
    """Scores [heads, L, L] of a sequence's Q and K [heads, L, D] with their bias; -infinity outside the window."""
    scores = torch.matmul(queries, keys.transpose(1, 2)) * problem.scale
    length = scores.shape[1]
    indices = torch.arange(length, device=DEVICE)
    distance = indices[None, :] - indices[:, None]
    left, right = (length if side < 0 else side for side in positions.window)
    reach = positions.bias_range
    column = distance.clamp(-reach, reach) + reach
    if positions.slopes is not None:
        scores -= positions.slopes[heads, None, None].to(scores.dtype) * distance.abs()
    if positions.distance_bias is not None:
        scores += positions.distance_bias[heads].to(scores.dtype)[:, column]
    if positions.k_position is not None:
        scores += problem.scale * by_distance(queries, positions.k_position, heads).gather(2, column.expand_as(scores))
    if positions.q_position is not None:
        of_keys = by_distance(keys, positions.q_position, heads).gather(2, column.T.expand_as(scores))
        scores += problem.scale * of_keys.transpose(1, 2)
    return scores.masked_fill((distance < -left) | (distance > right), -torch.inf)


def by_distance(x: torch.Tensor, rows: torch.Tensor, heads: slice) -> torch.Tensor:
    """Products of x [heads, L, D] and the rows [2R + 1, H*D] of all distances: [heads, L, 2R + 1]."""
    tables = rows.unflatten(1, (-1, x.shape[2])).transpose(0, 1)[heads].to(x.dtype)
    return torch.matmul(x, tables.transpose(1, 2))


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
    """The sequence of each token and its position in it, int64 [T] each."""
    lengths = torch.tensor(case.lengths, device=DEVICE)
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=DEVICE), lengths)
    starts = lengths.cumsum(0) - lengths
    return sequence, torch.arange(case.tokens, device=DEVICE) - starts[sequence]
