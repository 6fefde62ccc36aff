# SPDX-License-Identifier: Apache-2.0
"""What a QuantizeLinear and the DequantizeLinear after it do to numbers, depending on the type that they store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, helper

from ...files import Array

_FLOATS = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2)
RANGES: Mapping[int, tuple[float, float]] = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT32: (-(2**31), 2**31 - 1),
    TensorProto.FLOAT8E4M3FN: (-448, 448),
    TensorProto.FLOAT8E5M2: (-57344, 57344),
}
NAMES: Mapping[int, str] = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
    TensorProto.INT32: "int32",  # biases
    TensorProto.FLOAT8E4M3FN: "e4m3",
    TensorProto.FLOAT8E5M2: "e5m2",
}


@dataclass(frozen=True)
class Rounding:
    """What a pair of nodes does to numbers: scale and zero point, along an axis where there are several."""

    kind: int
    scale: Array
    zero: Array
    axis: int

    def broadcast(self, values: Array, rank: int) -> Array:
        """Scales or zero points in a shape that broadcasts to a tensor of this rank."""
        if values.size == 1:
            return values.reshape(())
        shape = [1] * rank
        shape[self.axis] = values.size
        return values.reshape(shape)

    def cuts_negatives(self) -> bool:
        """Whether the smallest number that can be stored stands for zero."""
        # A scale that is not finite, as for masks with float32's least number, says nothing about signs.
        if self.kind in _FLOATS or not np.isfinite(self.scale).all():
            return False
        return bool((self.zero.astype(np.float64) == RANGES[self.kind][0]).all())

    def dequantize(self, codes: Array) -> Array:
        """The stored numbers as float32."""
        scale, zero = (self.broadcast(item, codes.ndim).astype(np.float32) for item in (self.scale, self.zero))
        values: Array = (codes.astype(np.float32) - zero) * scale
        return values

    def quantize(self, values: Array) -> Array:
        """The numbers that are stored: rounded to nearest even, cut off at the type's ends."""
        scale, zero = (self.broadcast(item, values.ndim).astype(np.float32) for item in (self.scale, self.zero))
        low, high = RANGES[self.kind]
        scaled = values.astype(np.float32) / scale
        if self.kind in _FLOATS:
            floats: Array = np.clip(scaled, low, high).astype(helper.tensor_dtype_to_np_dtype(self.kind))
            return floats
        codes: Array = np.clip(np.rint(scaled) + zero, low, high)
        return codes


def axis_of(node: NodeProto) -> int:
    """The axis of a node's scales, where there are several."""
    return next((int(item.i) for item in node.attribute if item.name == "axis"), 1)
