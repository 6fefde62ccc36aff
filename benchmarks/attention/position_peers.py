# SPDX-License-Identifier: Apache-2.0
"""What else computes attention with windows and biases over packed sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from .cases import FA2, Places
from .peers import ours
from .position_cases import PLAIN
from .problem import Launch, Prepare, Problem, UnsupportedError, slots


def plain(problem: Problem) -> Launch:
    """PadfreeAttention without what this case asks for: what windows and biases cost or save."""
    return replace(ours(replace(problem, case=replace(problem.case, places=Places()))), checked=False)


def fa2_window(problem: Problem) -> Launch:
    """PyTorch's varlen attention with a window."""
    from torch.nn.attention.varlen import varlen_attn

    case, offsets = problem.case, problem.cu_seqlens
    if case.places.bias != "none":
        raise UnsupportedError("it knows no biases")
    return Launch(
        lambda index: varlen_attn(
            *problem.operands(index), offsets, offsets, case.longest, case.longest, window_size=case.places.window
        )
    )


def flex(problem: Problem) -> Launch:
    """PyTorch's flex_attention, compiled, over the packed tokens; its block mask is made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    case, positions = problem.case, problem.positions
    sequence, place = slots(case)
    left, right = (case.longest if side < 0 else side for side in positions.window)
    slopes, table, reach = positions.slopes, positions.distance_bias, positions.bias_range

    def visible(_: object, __: object, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (sequence[row] == sequence[key]) & (key - row >= -left) & (key - row <= right)

    def biased(
        score: torch.Tensor, _: object, head: torch.Tensor, row: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        if slopes is not None:
            return score - slopes[head] * (key - row).abs()
        if table is not None:
            return score + table[head, (key - row).clamp(-reach, reach) + reach]
        return score

    mask = create_block_mask(visible, None, None, case.tokens, case.tokens, device=place.device)
    compiled = torch.compile(flex_attention, dynamic=False)

    def run(index: int) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in problem.operands(index))
        return compiled(q, k, v, score_mod=biased, block_mask=mask, scale=problem.scale)

    return Launch(run, lambda output: output[0].transpose(0, 1).flatten(1))


PEERS: Mapping[str, Prepare] = {PLAIN: plain, FA2: fa2_window, "flex_attention": flex}
"""By name."""
