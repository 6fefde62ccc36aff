# SPDX-License-Identifier: Apache-2.0
"""The float32 constants of a graph whose type changes: each is stored once, in the type or types that nodes read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
from onnx import TensorProto
from onnx_graphsurgeon.ir.tensor import LazyValues

from ..analysis import dtype_name, node_name
from ..errors import RewriteError
from ..files import DeferredData, Floats, HeldValues, bytes_of_array
from ..operators import ACT_TYPES
from .bfloat16 import is_finite_in_fp16, to_half_from_bits
from .blocks import largest_of, map_pieces, on_all_cores, pieces
from .halves import to_float
from .ranges import LARGEST, unfit_reason, unfit_reason_of_bits
from .rounded_weights import round_values, survives


def float_values(constant: gs.Constant) -> Floats:
    """The values of a constant, which stay where they are; not to be written to."""
    values = constant._values  # its property `values` would keep what it reads
    return to_float(values.load() if isinstance(values, LazyValues) else values)


class HalfConstants:
    """The float32 constants of one graph; those in the new type get their names when all nodes have said how they read.

    Args:
        graph: has the constants.
        precision: the new type, "fp16" or "bf16".
    """

    def __init__(self, graph: gs.Graph, precision: str) -> None:
        self._precision = precision
        self._constants = {
            name: tensor
            for name, tensor in graph.tensors().items()
            if isinstance(tensor, gs.Constant) and dtype_name(tensor.dtype) == "float32"
        }
        self._trials: dict[str, npt.NDArray[Any]] = {}  # what constants become if they are read in the new type
        self._rounded: dict[str, gs.Constant] = {}  # constants that are read in the new type
        self._read_as_float32: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._constants

    def survives(self, name: str) -> bool:
        """Whether a constant can be rounded (rounded_weights.py)."""
        return self._exact(name) is not None or survives(float_values(self._constants[name]), self._precision)

    def add(self, constant: gs.Constant) -> None:
        """Adds a constant."""
        self._constants[constant.name] = constant

    def find_unfit(self, names: Iterable[str]) -> dict[str, str]:
        """The constants of these names that the new type cannot hold, with the reasons."""

        def trial(name: str) -> tuple[npt.NDArray[Any], str]:
            bits = self._bfloat16(name)
            if bits is not None:
                halves, count = to_half_from_bits(bits)
                return halves, unfit_reason_of_bits(bits, halves, count)
            values = float_values(self._constants[name])
            content = round_values(values, self._precision)
            return content, unfit_reason(values, self._precision, rounded=content)

        reasons = {}
        names_here = sorted(name for name in set(names) if name in self and self._exact(name) is None)
        for name, (content, reason) in zip(names_here, on_all_cores(trial, names_here), strict=True):
            if reason:
                reasons[name] = reason
            else:
                self._trials[name] = content
        return reasons

    def keep(self, name: str) -> None:
        """Notes that a constant is read as float32."""
        self._read_as_float32.add(name)

    def in_half(self, name: str, reader: gs.Node) -> gs.Constant:
        """A constant in the new type, as a node reads it. Raises RewriteError where it overflows."""
        if name not in self._rounded:
            content: npt.NDArray[Any] | DeferredData | None = self._exact(name)
            if content is None:
                content = self._trials.pop(name, None)
                if content is None:
                    content = self._halves_of_bits(name)
                if content is None or self._precision != "fp16":  # otherwise it was found to fit
                    values = float_values(self._constants[name])
                    self._refuse_overflow(name, values, reader)
                    if content is None:
                        content = map_pieces(partial(round_values, precision=self._precision), values)
            self._rounded[name] = self._constant(name, content)
        return self._rounded[name]

    def _constant(self, name: str, content: npt.NDArray[Any] | DeferredData) -> gs.Constant:
        """A constant in the new type, for which numpy may have no name."""
        message = TensorProto(data_type=ACT_TYPES[self._precision], dims=tuple(self._constants[name].shape))
        data = content if isinstance(content, DeferredData) else bytes_of_array(content)
        return gs.Constant(f"{name}.{self._precision}", HeldValues(message, data))

    def _exact(self, name: str) -> DeferredData | None:
        """A constant's numbers in the new type, where the file that they come from has them in that type."""
        values = self._constants[name]._values
        data = values.source if isinstance(values, HeldValues) else None
        return data.narrow.get(ACT_TYPES[self._precision]) if isinstance(data, DeferredData) else None

    def _bfloat16(self, name: str) -> npt.NDArray[np.uint16] | None:
        """The bits of a constant that becomes fp16, where the file that it comes from has it in bfloat16."""
        values = self._constants[name]._values
        data = values.source if isinstance(values, HeldValues) and self._precision == "fp16" else None
        narrow = data.narrow.get(TensorProto.BFLOAT16) if isinstance(data, DeferredData) else None
        return None if narrow is None else np.frombuffer(narrow.data(), np.uint16).reshape(values.shape)

    def _halves_of_bits(self, name: str) -> npt.NDArray[np.float16] | None:
        """A constant of `_bfloat16` in fp16; None for others, and where it overflows."""
        bits = self._bfloat16(name)
        if bits is None or not all(on_all_cores(is_finite_in_fp16, pieces(bits))):
            return None
        return map_pieces(lambda part: to_half_from_bits(part)[0], bits)

    def _refuse_overflow(self, name: str, values: Floats, reader: gs.Node) -> None:
        largest = max(on_all_cores(largest_of, pieces(values)), default=0.0)
        if largest > LARGEST[self._precision]:
            advice = "bf16 or fp32" if self._precision == "fp16" else "fp32"
            raise RewriteError(
                f"weight '{name}' of {reader.op} '{node_name(reader)}' holds {largest:g}, {self._precision} holds at "
                f"most {LARGEST[self._precision]:g}; choose precision {advice}"
            )

    def name_rounded(self) -> None:
        """Gives those in the new type the names of the constants, unless these are read as float32 too."""
        for name, constant in self._rounded.items():
            if name not in self._read_as_float32:
                constant.name = name
