# SPDX-License-Identifier: Apache-2.0
"""Writes nodes of standard operators, whatever they are added to: a message, the body of a function, or a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Value = TypeVar("Value")

_AXES_ARE_INPUTS: Mapping[str, int] = MappingProxyType({"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13})
_OTHER_AXES_ARE_INPUTS = 18
"""The opsets from which on axes are an input, of these operators and of the other reductions."""


class NodeBuilder(ABC, Generic[Value]):
    """Adds nodes and constants; a value is a tensor of a graph, or a name.

    Attributes:
        opset: the version of the standard operators.
    """

    opset: int

    def op(self, op: str, *inputs: Value, output: Value | None = None, stem: str = "", **attributes: Any) -> Value:
        """A node with one result: a new one, or `output`, whatever made that before. New names begin with `stem`."""
        return self._add(op, inputs, output, stem, attributes)

    def integers(self, *values: int) -> Value:
        """int64 [N], as axes and sizes are."""
        return self._constant(np.asarray(values, np.int64))

    def scalar(self, value: float, dtype: npt.DTypeLike) -> Value:
        """A scalar."""
        return self._constant(np.asarray(value, dtype))

    def along(self, op: str, x: Value, *axes: int, **attributes: Any) -> Value:
        """A node that works along axes, which are an attribute in older opsets."""
        if self.opset < _AXES_ARE_INPUTS.get(op, _OTHER_AXES_ARE_INPUTS):
            return self.op(op, x, axes=list(axes), **attributes)
        return self.op(op, x, self.integers(*axes), **attributes)

    def unsqueeze(self, x: Value, *axes: int, output: Value | None = None, stem: str = "") -> Value:
        """The value with new axes of size 1."""
        return self.along("Unsqueeze", x, *axes, output=output, stem=stem)

    def reshape(self, x: Value, *sizes: int) -> Value:
        """Another shape; 0 keeps an axis, -1 takes what is left."""
        return self.op("Reshape", x, self.integers(*sizes))

    def count_to(self, limit: Value, stem: str = "") -> Value:
        """0, 1, 2, ... up to a number int64, without it."""
        return self.op("Range", self.scalar(0, np.int64), limit, self.scalar(1, np.int64), stem=stem)

    def slots(self, like: Value, axis: int) -> Value:
        """0, 1, 2, ... int64, as many as a value has along an axis."""
        return self.count_to(self.op("Gather", self.op("Shape", like), self.scalar(axis, np.int64), axis=0))

    @abstractmethod
    def _add(
        self, op: str, inputs: Sequence[Value], output: Value | None, stem: str, attributes: Mapping[str, Any]
    ) -> Value:
        """Adds a node and returns its result."""

    @abstractmethod
    def _constant(self, values: npt.NDArray[Any]) -> Value:
        """Adds a constant."""
