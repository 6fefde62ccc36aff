# SPDX-License-Identifier: Apache-2.0
"""Other implementations of attention with windows and biases over packed sequences."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from unittest import mock

import torch

from .cases import FA2, PositionTerms
from .peers import ours
from .position_cases import PLAIN
from .problem import LONGEST_DISTANCE, Launch, Prepare, Problem, UnsupportedError, padding, slots, unpadding


def plain(problem: Problem) -> Launch:
    """PadfreeAttention without the case's window and bias, to show what these cost or save."""
    return replace(ours(replace(problem, case=replace(problem.case, positions=PositionTerms()))), checked=False)


def fa2_window(problem: Problem) -> Launch:
    """PyTorch's varlen attention with a window. Older ones take fewer heads of K and V without being told."""
    from torch.nn.attention.varlen import varlen_attn

    case, offsets = problem.case, problem.cu_seqlens
    shares_keys = case.kv_heads is not None and "enable_gqa" in signature(varlen_attn).parameters
    options = {"enable_gqa": True} if shares_keys else {}
    if case.positions.bias != "none":
        raise UnsupportedError("it knows no biases")
    return Launch(
        lambda index: varlen_attn(
            *problem.operands(index),
            offsets,
            offsets,
            case.longest,
            case.longest,
            window_size=case.positions.window,
            **options,
        )
    )


def flex(problem: Problem) -> Launch:
    """PyTorch's flex_attention, compiled, over the packed tokens; its block mask is made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    case, positions = problem.case, problem.positions
    if case.positions.bias == "disentangled":
        raise UnsupportedError("its functions of scores see neither Q nor K")
    sequence, position = slots(case)
    left, right = (case.longest if side < 0 else side for side in positions.window)
    slopes, table, reach = positions.slopes, positions.distance_bias, positions.bias_range

    def visible(_: object, __: object, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (sequence[row] == sequence[key]) & (key - row >= -left) & (key - row <= right)

    def bias_score(
        score: torch.Tensor, _: object, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        if slopes is not None:
            return score - slopes[head] * (key - row).abs()
        if table is not None:
            return score + table[head, (key - row).clamp(-reach, reach) + reach]
        return score

    small = {"BLOCK_M": 64, "BLOCK_N": 64}  # larger tiles do not fit into shared memory along with a table
    options = small if table is not None else None
    mask = create_block_mask(visible, None, None, case.tokens, case.tokens, device=position.device)
    compiled = torch.compile(flex_attention, dynamic=False)

    def run(index: int) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in problem.operands(index))
        return compiled(
            q, k, v, score_mod=bias_score, block_mask=mask, scale=problem.scale, kernel_options=options,
            enable_gqa=case.kv_heads is not None,
        )  # fmt: skip

    return Launch(run, lambda output: output[0].transpose(0, 1).flatten(1))


def flashdeberta_padded(problem: Problem) -> Launch:
    """flashdeberta's kernel over Q, K and V [B, H, S, D], padded and transposed beforehand, with the lengths."""
    case, rows = problem.case, position_tables(problem)
    from flashdeberta.ops.flash_attention import flash_attention_with_disentangled

    pad, lengths = padding(problem), problem.cu_seqlens.diff()
    inputs = [[pad(operand) for operand in problem.operands(i)] for i in range(len(problem.inputs))]

    def run(index: int) -> torch.Tensor:
        return flash_attention_with_disentangled(
            *inputs[index], lengths, *rows, False, problem.scale, case.positions.buckets, LONGEST_DISTANCE
        )

    return Launch(run, unpadding(problem))


def flashdeberta_varlen(problem: Problem) -> Launch:
    """flashdeberta's kernel over packed sequences; the table of blocks from its host code is made beforehand."""
    case, rows, offsets = problem.case, position_tables(problem), problem.cu_seqlens
    from flashdeberta.ops import flash_attention_varlen as ops

    blocks = functools.cache(functools.partial(ops.get_mid_cached, offsets, len(case.lengths), device=offsets.device))

    def run(index: int) -> torch.Tensor:
        with mock.patch.object(ops, "get_mid_cached", lambda _offsets, _batch, rows, _device: blocks(BLOCK_M=rows)):
            return ops.flash_attention_with_disentangled_varlen(
                *problem.operands(index), *rows, offsets, offsets, case.longest, case.longest,
                False, problem.scale, case.positions.buckets, LONGEST_DISTANCE,
            )  # fmt: skip

    return Launch(run)


def position_tables(problem: Problem) -> list[torch.Tensor]:
    """Rows of K's and Q's positions in flashdeberta's layout, [H, 2 * buckets, D]."""
    if problem.case.positions.bias != "disentangled":
        raise UnsupportedError("it knows the disentangled bias alone")
    heads = problem.case.heads
    return [rows.unflatten(1, (heads, -1)).transpose(0, 1).contiguous() for rows in problem.position_rows]


PEERS: Mapping[str, Prepare] = {
    PLAIN: plain,
    FA2: fa2_window,
    "flex_attention": flex,
    "flashdeberta, padded": flashdeberta_padded,
    "flashdeberta, varlen": flashdeberta_varlen,
}
"""By name."""
