# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings (arXiv 2104.09864): which frequencies config.json asks for, and heads turned by them.

The first half of a head is turned with the second, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from .errors import NotDefinedError
from .graph import EncoderGraph
from .keys import Keys

Frequencies = npt.NDArray[np.float32]


def plain_frequencies(size: int, base: float) -> Frequencies:
    """base^(-2 i / size) for i below size / 2, rounded as torch rounds them.

    Raises:
        NotDefinedError: float32 does not hold the base.
    """
    if base > float(np.finfo(np.float32).max):
        raise NotDefinedError(f"the base of rotary embeddings is {base:g}, which float32 does not hold")
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    frequencies: Frequencies = np.float32(1) / np.power(np.float32(base), exponents)
    return frequencies


def _linear(plain: Frequencies, keys: Keys, _positions: int) -> Frequencies:
    frequencies: Frequencies = plain / np.float32(keys.number("factor"))
    return frequencies


def _llama3(plain: Frequencies, keys: Keys, positions: int) -> Frequencies:
    """Low frequencies are divided, high ones stay, and what lies between goes from the one to the other."""
    factor = keys.number("factor")
    low, high = keys.number("low_freq_factor"), keys.number("high_freq_factor")
    trained = keys.size("original_max_position_embeddings", default=positions)
    if high <= low:
        raise NotDefinedError(f"'high_freq_factor' {high:g} is not above 'low_freq_factor' {low:g}")
    rotations = trained * plain.astype(np.float64) / (2 * math.pi)
    weight = np.clip((rotations - low) / (high - low), 0, 1)
    return (plain * ((1 - weight) / factor + weight)).astype(np.float32)


def _as_it_is(plain: Frequencies, _keys: Keys, _positions: int) -> Frequencies:
    return plain


_SCALINGS: Mapping[str, Callable[[Frequencies, Keys, int], Frequencies]] = MappingProxyType(
    {"default": _as_it_is, "linear": _linear, "llama3": _llama3}
)
"""By transformers' names. Those that depend on the length of a batch ("dynamic") are not among them."""


def frequencies(keys: Keys, size: int, base: float, positions: int) -> Frequencies:
    """The frequencies of heads of `size` numbers.

    Args:
        keys: with `rope_theta`, and `rope_scaling` or, as transformers 5 has it, `rope_parameters`.
        size: D.
        base: the default of rope_theta.
        positions: max_position_embeddings.

    Raises:
        NotDefinedError: config.json asks for others.
    """
    base = keys.number("rope_theta", default=base)
    keys.only(partial_rotary_factor=1.0)
    scaling, parameters = keys.inner("rope_scaling"), keys.inner("rope_parameters")
    return scaled(scaling if scaling is not None else parameters, size, base, positions)


def scaled(parameters: Keys | None, size: int, base: float, positions: int) -> Frequencies:
    """The frequencies that an object of config.json asks for, whose own `rope_theta` counts where it has one."""
    if size % 2:
        raise NotDefinedError(f"heads have {size} numbers, which are no pairs")
    if parameters is None:
        return plain_frequencies(size, base)
    kind = parameters.text("rope_type", "type", default="default")
    if kind not in _SCALINGS:
        raise NotDefinedError(f"'rope_type' is '{kind[:60]}', and {', '.join(_SCALINGS)} alone are known")
    parameters.only(partial_rotary_factor=1.0)
    frequencies = _SCALINGS[kind](
        plain_frequencies(size, parameters.number("rope_theta", default=base)), parameters, positions
    )
    parameters.check_all_read()
    return frequencies


@dataclass(frozen=True)
class Rotary:
    """The cosines and sines of all positions, [S, D] each."""

    cosines: str
    sines: str
    size: int

    @classmethod
    def of(cls, graph: EncoderGraph, frequencies: Frequencies) -> Rotary:
        """Those of positions 0 to S - 1."""
        with graph.scope("rotary"):
            positions = graph.op("Unsqueeze", graph.op("Cast", graph.positions(), to=1), graph.integers(1))
            half = graph.op("Mul", positions, graph.constant(frequencies[None]))
            angles = graph.op("Concat", half, half, axis=-1)
            return cls(graph.op("Cos", angles), graph.op("Sin", angles), 2 * frequencies.size)

    def rotate(self, graph: EncoderGraph, x: str) -> str:
        """Queries or keys [B, H, S, D], turned."""
        half, end = self.size // 2, graph.integers(self.size)
        axis = graph.integers(-1)
        first = graph.op("Slice", x, graph.integers(0), graph.integers(half), axis)
        second = graph.op("Slice", x, graph.integers(half), end, axis)
        across = graph.op("Concat", graph.op("Neg", second), first, axis=-1)
        return graph.op("Add", graph.op("Mul", x, self.cosines), graph.op("Mul", across, self.sines))
