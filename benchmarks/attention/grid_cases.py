# SPDX-License-Identifier: Apache-2.0
"""A grid over head sizes, batches and lengths for the attention benchmark, where FlashAttention-2 is the only peer."""

from __future__ import annotations

from .cases import Case, times_fa2, uniform

BATCHES = (1, 4, 16, 40, 64, 200)
LENGTHS = (32, 64, 128, 256, 512, 1024)
HEADS = ((12, 12, 32), (12, 12, 64), (12, 12, 96), (16, 16, 128), (16, 8, 128), (4, 4, 256), (8, 8, 256))
"""Heads, those of K and V, and their size."""
MAX_TOKENS = 40_000
"""Batches with more are left out."""


def grid_cases() -> tuple[Case, ...]:
    """Batches of one length, and of lengths uniform between a fifth of it and it, with the seed 1."""
    batches = {
        name: lengths
        for batch in BATCHES
        for longest in LENGTHS
        if batch * longest <= MAX_TOKENS
        for name, lengths in (
            (f"B {batch}, length {longest}", (longest,) * batch),
            (f"B {batch}, lengths {longest // 5} to {longest}", uniform(batch, longest // 5, longest, seed=1)),
        )
        if batch > 1 or "lengths" not in name
    }
    return tuple(
        Case(f"D {size}, H {heads}/{shared}, {name}", heads, size, lengths, (times_fa2(1),), kv_heads=shared)
        for heads, shared, size in HEADS
        for name, lengths in batches.items()
    )
