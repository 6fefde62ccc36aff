# SPDX-License-Identifier: Apache-2.0
"""An IExprBuilder whose symbolic sizes carry numbers, so that plugins' getOutputShapes run without TensorRT."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .plugin_abi import BUILD, DimsExprs, Plugin, call, virtual_object

_OPERATIONS: dict[int, Callable[[int, int], int]] = {
    0: lambda a, b: a + b,
    1: lambda a, b: a * b,
    2: max,
    3: min,
    4: lambda a, b: a - b,
    7: lambda a, b: a // b,
    8: lambda a, b: -(-a // b),
}
_OBJECT = ctypes.c_void_p
_EXPRESSION = ctypes.c_void_p


@dataclass(frozen=True)
class Size:
    """One dimension: its value at run time, and whether the graph shows it as a constant."""

    value: int
    constant: bool = False


@dataclass(frozen=True)
class SizeTensor:
    """One declareSizeTensor call."""

    output: int
    opt: int
    upper: int


class ExpressionBuilder:
    """Holds the expressions of one getOutputShapes call. `counted` is what size tensors turn out to be."""

    def __init__(self, counted: int) -> None:
        self._counted = counted
        self._sizes: dict[int, Size] = {}
        self._alive: list[Any] = []
        self.size_tensors: list[SizeTensor] = []
        self._of_implementation: dict[int, Size] = {}
        impl = virtual_object(
            {
                2: ctypes.CFUNCTYPE(_EXPRESSION, _OBJECT, ctypes.c_int64)(lambda _, value: self.add(Size(value, True))),
                3: ctypes.CFUNCTYPE(_EXPRESSION, _OBJECT, ctypes.c_int, _EXPRESSION, _EXPRESSION)(self._operation),
                4: ctypes.CFUNCTYPE(_EXPRESSION, _OBJECT, ctypes.c_int32, _EXPRESSION, _EXPRESSION)(self._declare),
            }
        )
        self._builder = self._wrap(impl)
        self._expression_functions = {
            2: ctypes.CFUNCTYPE(ctypes.c_bool, _OBJECT)(lambda this: self._of_implementation[this].constant),
            3: ctypes.CFUNCTYPE(ctypes.c_int64, _OBJECT)(lambda this: self._of_implementation[this].value),
        }

    def add(self, size: Size) -> int:
        """Address of an IDimensionExpr of that size."""
        impl = virtual_object(self._expression_functions)
        self._of_implementation[ctypes.addressof(impl)] = size
        address = ctypes.addressof(self._wrap(impl))
        self._sizes[address] = size
        return address

    def output_shapes(self, plugin: Plugin, inputs: Sequence[Sequence[Size]]) -> list[tuple[int, ...]] | None:
        """Shapes of the plugin's outputs, None if it refuses those of the inputs."""
        shapes = (DimsExprs * max(len(inputs), 1))()
        for shape, sizes in zip(shapes, inputs, strict=False):
            shape.rank = len(sizes)
            for axis, size in enumerate(sizes):
                shape.d[axis] = self.add(size)
        outputs = (DimsExprs * plugin.output_count())()
        status = call(
            plugin.capability(BUILD),
            6,
            ctypes.c_int32,
            ctypes.cast(shapes, ctypes.c_void_p),
            ctypes.c_int32(len(inputs)),
            ctypes.c_void_p(None),
            ctypes.c_int32(0),
            ctypes.cast(outputs, ctypes.c_void_p),
            ctypes.c_int32(len(outputs)),
            ctypes.c_void_p(ctypes.addressof(self._builder)),
        )
        if status != 0:
            return None
        return [tuple(self._sizes[shape.d[axis]].value for axis in range(shape.rank)) for shape in outputs]

    def _wrap(self, impl: Any) -> Any:
        outer = virtual_object({0: ctypes.CFUNCTYPE(None)(lambda: None)})  # only mImpl after the table is used
        outer[1] = ctypes.addressof(impl)
        self._alive += [impl, outer]
        return outer

    def _operation(self, _this: int, operation: int, first: int, second: int) -> int:
        a, b = self._sizes[first], self._sizes[second]
        return self.add(Size(_OPERATIONS[operation](a.value, b.value), a.constant and b.constant))

    def _declare(self, _this: int, output: int, opt: int, upper: int) -> int:
        self.size_tensors.append(SizeTensor(output, self._sizes[opt].value, self._sizes[upper].value))
        return self.add(Size(self._counted))
