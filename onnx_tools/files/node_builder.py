# SPDX-License-Identifier: Apache-2.0
"""Writes nodes of standard operators, whatever they are added to: a message, the body of a function, or a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

_AXES_ARE_INPUTS: Mapping[str, int] = MappingProxyType({"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13})
_OTHER_AXES_ARE_INPUTS = 18
"""The first opset in which axes are an input: of these operators, and of all other reductions."""


class NodeBuilder(ABC, Generic[T]):
    """Adds nodes and constants; a value is a tensor of a graph, or a name.

    Attributes:
        opset: the version of the standard operators.
    """

    opset: int

    def op(
        self, op: str, *inputs: T | float | list[int], output: T | None = None, stem: str = "", **attributes: Any
    ) -> T:
        """A node with one result: `output` where it is given, or a new value, whose name begins with `stem`.

        Among the inputs, whole numbers become int64 scalars, other numbers float32 scalars, and lists int64 [N].
        """
        return self._add(op, [self._value(item) for item in inputs], output, stem, attributes)

    def _value(self, item: T | float | list[int]) -> T:
        if isinstance(item, list):
            return self.integers(*item)
        if isinstance(item, int | float):
            return self.scalar(item, np.int64 if isinstance(item, int) else np.float32)
        return item

    def integers(self, *values: int) -> T:
        """int64 [N], as axes and sizes are."""
        return self._constant(np.asarray(values, np.int64))

    def scalar(self, value: float, dtype: npt.DTypeLike) -> T:
        """A scalar."""
        return self._constant(np.asarray(value, dtype))

    def along(self, op: str, x: T, *axes: int, **attributes: Any) -> T:
        """A node that works along axes, which are an attribute in older opsets."""
        if self.opset < _AXES_ARE_INPUTS.get(op, _OTHER_AXES_ARE_INPUTS):
            return self.op(op, x, axes=list(axes), **attributes)
        return self.op(op, x, [*axes], **attributes)

    def unsqueeze(self, x: T, *axes: int, output: T | None = None, stem: str = "") -> T:
        """The value with new axes of size 1."""
        return self.along("Unsqueeze", x, *axes, output=output, stem=stem)

    def reshape(self, x: T, *sizes: int, output: T | None = None, stem: str = "") -> T:
        """Another shape; 0 keeps an axis, -1 takes what is left."""
        return self.op("Reshape", x, [*sizes], output=output, stem=stem)

    def in_shape(self, x: T, shape: T, output: T | None = None, stem: str = "") -> T:
        """The same elements in a shape that another value holds."""
        return self.op("Reshape", x, shape, output=output, stem=stem)

    def count_to(self, limit: T, stem: str = "") -> T:
        """0, 1, 2, ... up to a number int64, without it."""
        return self.op("Range", 0, limit, 1, stem=stem)

    def slots(self, like: T, axis: int) -> T:
        """0, 1, 2, ... int64, one for each element that a value has along an axis."""
        return self.count_to(self.op("Gather", self.op("Shape", like), axis, axis=0))

    @abstractmethod
    def _add(self, op: str, inputs: Sequence[T], output: T | None, stem: str, attributes: Mapping[str, Any]) -> T:
        """Adds a node and returns its result."""

    @abstractmethod
    def _constant(self, values: npt.NDArray[Any]) -> T:
        """Adds a constant."""
