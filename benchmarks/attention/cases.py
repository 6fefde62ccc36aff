# SPDX-License-Identifier: Apache-2.0
"""The attention benchmark's cases: their lengths, the work in them, and the times that they have to reach."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

FA2 = "FA2 varlen"
CUDNN = "cuDNN"
BEST = "the best peer"
BYTES_PER_ELEMENT = 2
"""All cases are fp16."""


@dataclass(frozen=True)
class Target:
    """A time to stay within: `factor` times a peer's (a name, or BEST), or `limit_us`."""

    text: str
    peer: str = ""
    factor: float = 1.0
    limit_us: float = math.inf
    stretch: bool = False

    def bound_us(self, peers_us: Mapping[str, float]) -> float | None:
        """The time in us; None if the peer that it depends on was not measured."""
        if not self.peer:
            return self.limit_us
        if self.peer == BEST:
            return self.factor * min(peers_us.values()) if peers_us else None
        return self.factor * peers_us[self.peer] if self.peer in peers_us else None

    def verdict(self, ours_us: float, peers_us: Mapping[str, float]) -> dict[str, object]:
        """The target as a JSON object: text, whether it is a stretch, the time it asked for, and whether it was met."""
        bound = self.bound_us(peers_us)
        return {
            "text": self.text,
            "stretch": self.stretch,
            "bound_us": None if bound is None else round(bound, 2),
            "met": None if bound is None else ours_us <= bound,
        }


@dataclass(frozen=True)
class PositionTerms:
    """What scores depend on besides Q and K: keys seen on both sides of a row (-1: all), and a bias.

    bias: "slope", "distance" or "disentangled" (for distances up to bias_range, constant beyond) or "none".
    buckets: how many logarithmic buckets of DeBERTa's a disentangled bias has rows of positions for, on each side.
    """

    window: tuple[int, int] = (-1, -1)
    bias: str = "none"
    bias_range: int = 0
    buckets: int = 0

    def visible_pairs(self, length: int) -> int:
        """How many pairs of a row and a key that it sees there are in a sequence."""
        left, right = (length if side < 0 else side for side in self.window)
        rows = np.arange(length)
        return int((np.minimum(rows + right, length - 1) - np.maximum(rows - left, 0) + 1).sum())


@dataclass(frozen=True)
class Case:
    """Sequences for one attention layer: H heads of size D, fp16, and the kernel that is measured as ours.

    kv_heads: those of K and V; None: H.
    """

    name: str
    heads: int
    head_size: int
    lengths: tuple[int, ...]
    targets: tuple[Target, ...]
    kernel: str = "auto"
    positions: PositionTerms = PositionTerms()
    kv_heads: int | None = None

    @property
    def tokens(self) -> int:
        """T."""
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        """The longest sequence, which a build would be given as max_seq_len."""
        return max(self.lengths)

    @property
    def equal_lengths(self) -> bool:
        """Whether all sequences have the same length."""
        return len(set(self.lengths)) == 1

    @property
    def flops(self) -> int:
        """Floating-point operations of both matrix products over valid tokens and the keys that they see."""
        return sum(4 * self.positions.visible_pairs(length) for length in self.lengths) * self.heads * self.head_size

    @property
    def bytes_moved(self) -> int:
        """Q, K and V read once and the output written once."""
        heads = 2 * (self.heads + (self.kv_heads or self.heads))
        return self.tokens * heads * self.head_size * BYTES_PER_ELEMENT


def uniform(batch: int, low: int, high: int, seed: int) -> tuple[int, ...]:
    """Lengths uniform in [low, high]."""
    return tuple(int(n) for n in np.random.RandomState(seed).randint(low, high + 1, batch))


def times_fa2(speedup: float) -> Target:
    """A multiple of the speed of FlashAttention-2's varlen kernel."""
    return Target(f"{speedup:g} x as fast as {FA2}", peer=FA2, factor=1 / speedup)


BEST_PEER = Target("the best peer's time", peer=BEST)
STRETCH_BEST_PEER = Target("the best peer's time", peer=BEST, stretch=True)


def ragged_cases() -> list[Case]:
    """Lengths like those of encoders' inputs; the seeds give the token counts for which the targets were set."""
    rows = (
        ("B 16, lengths 102 to 512", 12, uniform(16, 102, 512, seed=0), 2.2),
        ("B 16, lengths 26 to 128", 12, uniform(16, 26, 128, seed=31), 1.8),
        ("B 32, lengths 77 to 384", 16, uniform(32, 77, 384, seed=1136), 2.2),
        ("B 256, lengths 8 to 64", 12, uniform(256, 8, 64, seed=284), 3.5),
        ("B 64, lengths 8 to 64", 12, uniform(64, 8, 64, seed=1140), 3.5),
    )
    return [
        Case(f"H {heads}, {name}", heads, 64, lengths, (times_fa2(speedup), STRETCH_BEST_PEER))
        for name, heads, lengths, speedup in rows
    ]


def equal_cases(head_size: int, *, stretch: bool) -> list[Case]:
    """16k tokens of 16 heads, in sequences of equal length."""
    target = Target(f"at most 1.05 x {CUDNN}'s time", peer=CUDNN, factor=1.05, stretch=stretch)
    return [
        Case(f"H 16, D {head_size}, 16k tokens of {length}", 16, head_size, (length,) * (16384 // length), (target,))
        for length in (128, 512, 2048, 8192)
    ]


def narrow_cases() -> list[Case]:
    """Heads of 32, as in MiniLM and bge-small; B 100 is a query with 100 texts for a cross-encoder."""
    batches = {
        "B 16, lengths 102 to 512": uniform(16, 102, 512, seed=0),
        "B 100, lengths 30 to 300": uniform(100, 30, 300, seed=7),
        "B 32, lengths 77 to 384": uniform(32, 77, 384, seed=1136),
        "B 16, lengths 26 to 128": uniform(16, 26, 128, seed=31),
        "B 64, lengths 8 to 64": uniform(64, 8, 64, seed=1140),
        "B 32, length 512": (512,) * 32,
        **{f"B 1, length {length}": (length,) for length in (32, 128, 512)},
    }
    return [Case(f"H 12, D 32, {name}", 12, 32, lengths, (STRETCH_BEST_PEER,)) for name, lengths in batches.items()]


def all_cases() -> tuple[Case, ...]:
    """Every case, the most important first."""
    ragged = ragged_cases()
    alone = [Case(f"H 12, B 1, length {n}", 12, 64, (n,), (BEST_PEER,)) for n in (128, 512, 2048, 8192)]
    short = (32,) * 32
    mixed = Case(
        "H 12, one of 8192 among 63 of 32",
        12,
        64,
        (*short, 8192, *short[:31]),
        (Target("480 us", limit_us=480.0), STRETCH_BEST_PEER),
    )
    first = ragged[0]
    general = Case(
        f"general kernel, {first.name}",
        first.heads,
        first.head_size,
        first.lengths,
        (Target(f"{FA2}'s time", peer=FA2),),
        kernel="mma",
    )
    return (
        *ragged,
        *alone,
        *equal_cases(64, stretch=False),
        mixed,
        general,
        *equal_cases(128, stretch=True),
        *narrow_cases(),
    )
