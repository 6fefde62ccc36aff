# SPDX-License-Identifier: Apache-2.0
"""Frequencies of rotary embeddings for texts longer than the training's, by transformers' names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from padfree.onnx_tools.files import Floats

from .errors import NotDefinedError
from .keys import Keys


@dataclass(frozen=True)
class Frequencies:
    """How fast pairs of a head rotate.

    Attributes:
        numbers: D / 2 of them, in radians per position.
        scale: of cosines and sines.
        longest: for how many tokens they hold; None: for any.
    """

    numbers: Floats
    scale: float = 1.0
    longest: int | None = None


def plain_frequencies(size: int, base: float) -> Frequencies:
    """base^(-2 i / size) for i below size / 2, rounded as torch rounds them.

    Raises:
        NotDefinedError: float32 does not hold the base, or numbers do not make pairs.
    """
    return Frequencies(np.float32(1) / _wavelengths(size, base))


def _wavelengths(size: int, base: float) -> Floats:
    """base^(2 i / size)."""
    if size % 2:
        raise NotDefinedError(f"heads have {size} numbers, which do not make pairs")
    if base > float(np.finfo(np.float32).max):
        raise NotDefinedError(f"the base of rotary embeddings is {base:g}, which float32 does not hold")
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    lengths: Floats = np.power(np.float32(base), exponents)
    return lengths


def _default(base: float, size: int, _keys: Keys, _positions: int) -> Frequencies:
    return plain_frequencies(size, base)


def _linear(base: float, size: int, keys: Keys, _positions: int) -> Frequencies:
    return Frequencies(plain_frequencies(size, base).numbers / np.float32(keys.number("factor")))


def _dynamic(base: float, size: int, keys: Keys, positions: int) -> Frequencies:
    """The plain ones, up to max_position_embeddings: beyond, they would depend on the longest text of a batch."""
    keys.number("factor")
    keys.ignore("original_max_position_embeddings")  # which transformers does not read here
    return replace(plain_frequencies(size, base), longest=positions)


def _llama3(base: float, size: int, keys: Keys, positions: int) -> Frequencies:
    """Low frequencies are divided, high ones stay, and those between are interpolated."""
    factor, plain = keys.number("factor"), plain_frequencies(size, base).numbers
    low, high = keys.number("low_freq_factor"), keys.number("high_freq_factor")
    trained_length = keys.size("original_max_position_embeddings", default=positions)
    if high <= low:
        raise NotDefinedError(f"'high_freq_factor' {high:g} is not above 'low_freq_factor' {low:g}")
    rotations = trained_length * plain.astype(np.float64) / (2 * math.pi)
    weight = np.clip((rotations - low) / (high - low), 0, 1)
    return Frequencies((plain * ((1 - weight) / factor + weight)).astype(np.float32))


def _yarn(base: float, size: int, keys: Keys, positions: int) -> Frequencies:
    """High frequencies stay, low ones are divided, with a ramp between two numbers of rotations (arXiv 2309.00071)."""
    trained_length, factor = _stretching(keys, positions)
    fast, slow = keys.number("beta_fast", default=32.0), keys.number("beta_slow", default=1.0)
    if base <= 1:
        raise NotDefinedError(f"the base of rotary embeddings is {base:g}, which yarn has no ramp for")
    low, high = (
        size * math.log(trained_length / (rotations * 2 * math.pi)) / (2 * math.log(base)) for rotations in (fast, slow)
    )
    if keys.boolean("truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high += 0.001 if low == high else 0.0  # as transformers has it
    ramp = np.clip((np.arange(size // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    lengths = _wavelengths(size, base)
    numbers = ramp / (np.float32(factor) * lengths) + (1 - ramp) / lengths
    return Frequencies(numbers.astype(np.float32), _yarn_scale(keys, factor))


def _stretching(keys: Keys, positions: int) -> tuple[int, float]:
    """The longest text of the training, and how many times as long others may be."""
    trained_length = keys.size("original_max_position_embeddings", default=positions)
    return trained_length, keys.number("factor", default=positions / trained_length)


def _yarn_scale(keys: Keys, factor: float) -> float:
    def of(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    one, other = (keys.number(name, default=0.0, above=-1.0) for name in ("mscale", "mscale_all_dim"))
    return keys.number("attention_factor", default=of(one) / of(other) if one and other else of(1.0))


def _longrope(base: float, size: int, keys: Keys, positions: int) -> Frequencies:
    """A factor per frequency (arXiv 2402.13753): the short ones, for texts as long as those of the training.

    In transformers the long ones are taken for all texts of a batch as soon as one is longer.
    """
    trained_length, factor = _stretching(keys, positions)
    scale = 1.0 if factor <= 1 or trained_length < 2 else math.sqrt(1 + math.log(factor) / math.log(trained_length))
    short, long = (np.asarray(keys.numbers(name, size // 2), np.float32) for name in ("short_factor", "long_factor"))
    numbers = np.float32(1) / (short * _wavelengths(size, base))
    longest = None if np.array_equal(short, long) else trained_length
    return Frequencies(numbers, keys.number("attention_factor", default=scale), longest)


Scaling = Callable[[float, int, Keys, int], Frequencies]
SCALINGS: Mapping[str, Scaling] = MappingProxyType(
    {
        "default": _default,
        "linear": _linear,
        "dynamic": _dynamic,
        "llama3": _llama3,
        "yarn": _yarn,
        "longrope": _longrope,
    }
)
"""By transformers' names: of a base, the size of heads, the entries, and max_position_embeddings."""
