# SPDX-License-Identifier: Apache-2.0
"""Weights of GEMMs in e4m3, each quantised once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
from onnx import TensorProto

from ..analysis.graph import Editor
from ..errors import RewriteError
from ..files.weights import HeldValues, bytes_of_array
from ..operators.functions import ACT_TYPES
from ..passes.norms.folded_weights import values_of
from .e4m3 import Bytes, Floats, quantized_rows


@dataclass(frozen=True)
class QuantizedWeight:
    """e4m3 [N,K] with a scale per row, float32 [N]: the transpose of a GEMM's weight [K,N]."""

    rows: Bytes
    scale: Floats

    def dequantize(self) -> Floats:
        """The rows as float32 [N,K]."""
        values: Floats = self.rows.astype(np.float32) * self.scale[:, np.newaxis]
        return values


class QuantizedWeights:
    """Quantises constants [K,N], and keeps the results by their names."""

    def __init__(self) -> None:
        self._cache: dict[str, QuantizedWeight] = {}

    def of(self, weight: gs.Constant) -> QuantizedWeight:
        """The weight in e4m3. Raises RewriteError where it holds numbers that are not finite."""
        if weight.name not in self._cache:
            values = values_of(weight)
            if not np.isfinite(values).all():
                raise RewriteError(f"weight '{weight.name}' holds numbers that are not finite; export the model again")
            self._cache[weight.name] = QuantizedWeight(*quantized_rows(np.ascontiguousarray(values.T)))
        return self._cache[weight.name]


def e4m3_constant(editor: Editor, stem: str, values: Bytes) -> gs.Constant:
    """A constant of e4m3, which numpy does not have: its data lies outside of its message."""
    message = TensorProto(data_type=TensorProto.FLOAT8E4M3FN, dims=values.shape)
    return gs.Constant(editor.fresh(stem), HeldValues(message, bytes_of_array(values.view(np.uint8))))


def half_scalar(editor: Editor, stem: str, value: float) -> gs.Constant:
    """A scalar of fp16: scales are powers of two, which it holds exactly."""
    scalar: npt.NDArray[np.float16] = np.asarray(value, np.float16)
    return editor.constant(stem, scalar)


def zeros(editor: Editor, stem: str, count: int, precision: str) -> gs.Constant:
    """Zeros [count] of fp16 or bf16."""
    message = TensorProto(data_type=ACT_TYPES[precision], dims=[count])
    return gs.Constant(editor.fresh(stem), HeldValues(message, bytes_of_array(np.zeros(count, np.uint16))))
