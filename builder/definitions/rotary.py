# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings (arXiv 2104.09864): which frequencies config.json asks for, and heads rotated by them.

The first half of a head is rotated with the second, element by element.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from .attention import Scoring
from .errors import NotDefinedError
from .graph import EncoderGraph
from .keys import Keys
from .scalings import SCALINGS, Frequencies, plain_frequencies
from .unseen import MORE

__all__ = ["Frequencies", "Rotary", "frequencies", "frequencies_of", "parameters_by_kind", "plain_frequencies"]


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
    return frequencies_of(scaling if scaling is not None else parameters, size, base, positions)


def frequencies_of(parameters: Keys | None, size: int, base: float, positions: int) -> Frequencies:
    """The frequencies that an object of config.json asks for; its own `rope_theta` wins where it has one."""
    if parameters is None:
        return plain_frequencies(size, base)
    kind = parameters.text("rope_type", "type", default="default")
    if kind not in SCALINGS:
        raise NotDefinedError(f"'rope_type' is {kind[:60]!r}, and {', '.join(SCALINGS)} alone are known")
    parameters.only(partial_rotary_factor=1.0)
    frequencies = SCALINGS[kind](parameters.number("rope_theta", default=base), size, parameters, positions)
    parameters.check_all_read()
    return frequencies


def parameters_by_kind(parameters: Keys | None, kinds: Iterable[str]) -> dict[str, Keys | None]:
    """The objects of `rope_parameters` for kinds of attention; None for those that it does not have."""
    if parameters is None:
        return dict.fromkeys(kinds)
    inner = {kind: parameters.inner(kind) for kind in kinds}
    parameters.check_all_read()
    return inner


@dataclass(frozen=True)
class Rotary:
    """The cosines and sines of all positions, [S, D] each, or with unseen tokens [S, D + more]."""

    cosines: str
    sines: str
    size: int
    more: int = 0

    @classmethod
    def of(cls, graph: EncoderGraph, frequencies: Frequencies) -> Rotary:
        """The rotations of positions 0 to S - 1, up to the longest sequence that the frequencies hold for."""
        with graph.scope("rotary"):
            numbers = graph.positions()
            if frequencies.longest is None:
                numbers = graph.op("Cast", numbers, to=1)
            else:
                numbers = graph.op("Gather", graph.constant(np.arange(frequencies.longest)), numbers)
            positions = graph.unsqueeze(numbers, 1)
            more = 0 if graph.unseen is None else MORE
            turning = np.pad(frequencies.numbers, (0, more // 2))  # what unseen tokens add to heads stands still
            half = graph.op("Mul", positions, graph.constant(turning[None]))
            angles = graph.op("Concat", half, half, axis=-1)
            cosines, sines = graph.op("Cos", angles), graph.op("Sin", angles)
            if frequencies.scale != 1:
                scale = graph.constant(frequencies.scale)
                cosines, sines = graph.op("Mul", cosines, scale), graph.op("Mul", sines, scale)
            return cls(cosines, sines, 2 * turning.size, more)

    def rotate(self, graph: EncoderGraph, x: str) -> str:
        """Queries or keys [B, H, S, D], rotated."""
        half = self.size // 2
        first = graph.op("Slice", x, [0], [half], [-1])
        second = graph.op("Slice", x, [half], [self.size], [-1])
        across = graph.op("Concat", graph.op("Neg", second), first, axis=-1)
        return graph.op("Add", graph.op("Mul", x, self.cosines), graph.op("Mul", across, self.sines))

    def scoring(self, graph: EncoderGraph, mask: str, scale: float | None = None) -> Scoring:
        """Scores of queries and keys that are rotated; the scale is that of D numbers, unless it is given."""
        rotate = partial(self.rotate, graph)
        scale = (self.size - self.more) ** -0.5 if scale is None else scale
        return Scoring(scale, mask, rotate_queries=rotate, rotate_keys=rotate)
