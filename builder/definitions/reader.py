# SPDX-License-Identifier: Apache-2.0
"""Reads weights for a model, as they are in files or made of such."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onnx import TensorProto
from padfree.onnx_tools.files import DeferredData, Floats, Weights

from .stored_numbers import widen
from .tensors import Weight

_HALVES: Mapping[str, int] = {"F16": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16}


@dataclass(frozen=True)
class MadeWeight:
    """A weight that is made of others when it is read.

    Attributes:
        name: what it is called in the graph.
        shape: of the result.
        parts: what it is made of.
        make: makes it, of the numbers of `parts` in float32.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Weight, ...]
    make: Callable[[Sequence[Floats]], Floats]

    def files(self) -> set[Path]:
        """All files that it is read from."""
        return {file for part in self.parts for file in part.files()}

    def read(self, contents: Mapping[Path, memoryview | None]) -> Floats:
        """The numbers in float32, as `Weight.read` gives them."""
        return self.make([part.read(contents) for part in self.parts])


class Reader:
    """Reads weights for a model that has `weights`, which says whether files are mapped into memory."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._contents: dict[Path, memoryview | None] = {}

    def open(self, weight: Weight | MadeWeight) -> None:
        """Makes the files of a weight ready to be read."""
        for file in weight.files() - set(self._contents):
            with file.open("rb") as stream:
                self._contents[file] = self._weights.map_or_watch(stream)

    def read(self, weight: Weight | MadeWeight) -> Floats:
        """A weight's numbers."""
        return weight.read(self._contents)

    def defer(self, weight: Weight | MadeWeight) -> DeferredData:
        """A weight that is read when somebody asks for it."""
        count, narrow = math.prod(weight.shape), dict[int, DeferredData]()
        if isinstance(weight, MadeWeight):
            return DeferredData(4 * count, partial(self.read, weight))
        rows = partial(weight.read_rows, self._contents) if weight.is_table() else None
        if weight.dtype in _HALVES and weight.is_exact():
            read = partial(weight.read_narrow, self._contents)
            narrow[_HALVES[weight.dtype]] = DeferredData(2 * count, read, rows=rows)
        wide = None if rows is None else lambda numbers: widen(rows(numbers), weight.dtype)
        return DeferredData(4 * count, partial(self.read, weight), narrow, wide)
