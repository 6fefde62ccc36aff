# SPDX-License-Identifier: Apache-2.0
"""Arguments of the functions of include/padfree.h."""

from __future__ import annotations

import ctypes
import enum
from typing import Any

from padfree.runtime.c_api import AttentionArgs, Operand, ScheduleArgs


class Status(enum.IntEnum):
    """padfree_status."""

    OK = 0
    INVALID_ARGUMENT = 1
    MISALIGNED = 2
    CUDA_ERROR = 3


def attention_args(
    q: Operand, k: Operand, v: Operand, *, heads: int, head_size: int, tokens: int, sequences: int, **others: Any
) -> AttentionArgs:
    """Arguments of padfree_attention: fp16, no window, scale 1 / sqrt(head_size), unless `others` change these."""
    args = AttentionArgs(struct_size=ctypes.sizeof(AttentionArgs), type=1, num_heads=heads, num_kv_heads=heads)
    args.head_size, args.num_tokens, args.num_sequences = head_size, tokens, sequences
    args.scale, args.window_left, args.window_right = head_size**-0.5, -1, -1
    args.q, args.k, args.v = q, k, v
    for name, value in others.items():
        setattr(args, name, value)
    return args


def schedule_args(*, tokens: int, sequences: int, **others: Any) -> ScheduleArgs:
    """Arguments of padfree_schedule."""
    sizes = {"num_tokens": tokens, "num_sequences": sequences}
    return ScheduleArgs(struct_size=ctypes.sizeof(ScheduleArgs), **sizes, **others)
