# SPDX-License-Identifier: Apache-2.0
"""Cases of the attention benchmark in which scores depend on positions: windows, and biases of all kinds."""

from __future__ import annotations

from dataclasses import replace

from .cases import Case, PositionTerms, Target, times_fa2, uniform

PLAIN = "padfree, plain"
"""PadfreeAttention on the same sequences without windows and biases, through the same launcher."""


def microseconds(reach: float, stretch: float) -> tuple[Target, ...]:
    """A time to reach, and a stretch goal."""
    return (
        Target(f"{reach:g} us", limit_us=reach),
        Target(f"{stretch:g} us", limit_us=stretch, stretch=True),
    )


def over_plain(factor: float) -> Target:
    """At most this multiple of plain attention's time."""
    return Target(f"{factor:g} x plain", peer=PLAIN, factor=factor)


def position_cases() -> tuple[Case, ...]:
    """Every case, the most important first."""
    ragged, short = uniform(16, 102, 512, seed=0), uniform(16, 26, 128, seed=31)
    near = PositionTerms((64, 64))
    shapes = (
        ("B 16, lengths 102 to 512", ragged, microseconds(13, 11)),
        ("B 8, length 2048", (2048,) * 8, microseconds(36, 33)),
        ("B 1, length 8192", (8192,), microseconds(19, 16)),
    )
    windows = [
        Case(f"window 64, H 12, {name}", 12, 64, lengths, targets, positions=near) for name, lengths, targets in shapes
    ]
    wider = [
        replace(windows[1], name=f"{name}, H 12, B 8, length 2048", targets=(), positions=PositionTerms(window))
        for name, window in (("window 128", (128, 128)), ("window 256", (256, 256)), ("causal", (-1, 0)))
    ]
    biased = [
        Case(f"{name}, H 12, {shape}", 12, 64, lengths, (over_plain(factor),), positions=positions)
        for shape, lengths in (
            ("B 16, lengths 102 to 512", ragged),
            ("B 32, length 512", (512,) * 32),
            ("B 1, length 2048", (2048,)),
            ("B 16, lengths 26 to 128", short),
        )
        for name, positions, factor in (
            ("slopes", PositionTerms(bias="slope"), 1.08),
            ("distances to 128", PositionTerms(bias="distance", bias_range=128), 1.12),
        )
    ]
    disentangled = [
        Case(
            f"disentangled, H 12, B 16, lengths {name}",
            12,
            64,
            lengths,
            (Target(f"{reach} us", limit_us=reach),),
            positions=PositionTerms(bias="disentangled", bias_range=max(lengths) - 1, buckets=256),
        )
        for name, lengths, reach in (("102 to 512", ragged, 50), ("26 to 128", short, 11))
    ]
    decoders = [
        Case(
            f"causal, H {heads} over {kv_heads}, D {size}, B {len(lengths)}, {name}",
            heads,
            size,
            lengths,
            (times_fa2(1.5),),
            positions=PositionTerms((-1, 0)),
            kv_heads=kv_heads,
        )
        for heads, kv_heads, size in ((16, 8, 128), (3, 1, 256))
        for name, lengths in (("length 2048", (2048,) * 8), ("lengths 102 to 512", ragged))
    ]
    return (*windows, *disentangled, *biased, *wider, *decoders)
