# SPDX-License-Identifier: Apache-2.0
"""Weights with low-rank adapters (arXiv 2106.09685): every tensor has several, and one or none is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import BuildError
from .tensors import Tensors, Weight

_ORIGINAL, _FIRST, _SECOND = (f"parametrizations.weight.{name}" for name in ("original", "0.lora_A", "0.lora_B"))


@dataclass(frozen=True)
class Adapters:
    """The adapters of a model.

    Attributes:
        names: in the order in which tensors have them.
        rank: of each.
        scale: what products are multiplied by.
        choice: the one that is added; "" for none.
    """

    names: Sequence[str]
    rank: int
    scale: float
    choice: str

    def check(self) -> None:
        """Refuses an adapter that the model does not have.

        Raises:
            BuildError: naming those that it has.
        """
        if self.choice and self.choice not in self.names:
            raise BuildError(
                f"--adapter {self.choice}: the model has {', '.join(self.names) or 'none'}; choose of these, or "
                "leave it out"
            )


class AdaptedTensors(Tensors):
    """Tensors of which `NAME.weight` may be kept as an original and factors per adapter."""

    def __init__(self, tensors: Tensors, adapters: Adapters) -> None:
        super().__init__(())
        vars(self).update(vars(tensors))  # the same tensors, and what is read of them
        self._adapters = adapters

    def __contains__(self, name: str) -> bool:
        return super().__contains__(name) or super().__contains__(_part_name(name, _ORIGINAL))

    def take(self, name: str, *shape: int) -> Weight:
        """As that of Tensors; with the chosen adapter added."""
        if super().__contains__(name) or not super().__contains__(_part_name(name, _ORIGINAL)):
            return super().take(name, *shape)
        take = super().take
        weight = take(_part_name(name, _ORIGINAL), *shape)
        count, rank = len(self._adapters.names), self._adapters.rank
        # Of a table, rows of the first factor are looked up, and multiplied with the second.
        left, right = (_FIRST, _SECOND) if "embeddings" in name else (_SECOND, _FIRST)
        lefts = take(_part_name(name, left), count, shape[0], rank)
        rights = take(_part_name(name, right), count, rank, shape[1])
        if not self._adapters.choice:
            return weight
        number = self._adapters.names.index(self._adapters.choice)
        return weight.with_delta(self._adapters.choice, lefts.item(number), rights.item(number), self._adapters.scale)


def _part_name(name: str, part: str) -> str:
    return f"{name.removesuffix('weight')}{part}"
