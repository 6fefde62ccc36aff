# SPDX-License-Identifier: Apache-2.0
"""Weights of GEMMs in 8 bits, each quantised once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ..analysis import Editor
from ..errors import RewriteError
from ..files import Floats, held_constant
from ..operators import ACT_TYPES
from ..passes.norms.folded_weights import values_of
from ..precision import round_values
from .e4m3 import Bytes
from .formats import E4M3, Format
from .scales import TensorScale


@dataclass(frozen=True)
class QuantizedWeight:
    """Numbers [N,K] with a scale per row, float32 [N]: the transpose of a GEMM's weight [K,N]."""

    rows: Bytes
    scale: Floats

    def dequantize(self) -> Floats:
        """The rows as float32 [N,K]."""
        values: Floats = self.rows.astype(np.float32) * self.scale[:, np.newaxis]
        return values


class QuantizedWeights:
    """Quantises constants [K,N], and keeps the results by their names and those of their factors."""

    def __init__(self, number_format: Format = E4M3) -> None:
        self._format = number_format
        self._cache: dict[tuple[str, str], QuantizedWeight] = {}

    def of(self, weight: gs.Constant, scale: TensorScale) -> QuantizedWeight:
        """The weight times the factors of what it multiplies. Raises RewriteError for numbers that are not finite."""
        key = weight.name, scale.key
        if key not in self._cache:
            values = values_of(weight)
            if not np.isfinite(values).all():
                raise RewriteError(f"weight '{weight.name}' holds numbers that are not finite; export the model again")
            self._cache[key] = self.quantize(values, scale)
        return self._cache[key]

    def hold(self, weight: gs.Constant, scale: TensorScale, quantized: QuantizedWeight) -> None:
        """Gives a weight numbers that were rounded before, as a file has them."""
        self._cache[weight.name, scale.key] = quantized

    def quantize(self, values: Floats, scale: TensorScale) -> QuantizedWeight:
        """The weight of finite numbers [K,N], which is not kept."""
        rows = values.T if scale.factors is None else values.T * scale.factors
        return QuantizedWeight(*self._format.quantized_rows(np.ascontiguousarray(rows)))


def constant_of(editor: Editor, stem: str, values: Bytes, number_format: Format) -> gs.Constant:
    """A constant of 8 bits: numpy has no e4m3, so that its data lies outside of its message."""
    return held_constant(editor.fresh(stem), number_format.element_type, values.view(np.uint8))


def half_scalar(editor: Editor, stem: str, value: float) -> gs.Constant:
    """A scalar of fp16, which holds scales exactly."""
    scalar: npt.NDArray[np.float16] = np.asarray(value, np.float16)
    return editor.constant(stem, scalar)


def act_constant(editor: Editor, stem: str, values: Floats, precision: str) -> gs.Constant:
    """Numbers of fp16 or bf16, rounded to nearest."""
    return held_constant(editor.fresh(stem), ACT_TYPES[precision], round_values(values, precision))


def corrected_bias(editor: Editor, bias: gs.Constant, shift: Floats, precision: str) -> gs.Constant:
    """A bias [N] of fp16 or bf16 less the mean error [N] of its GEMM's results."""
    return act_constant(editor, f"{bias.name}_corrected", values_of(bias) - shift, precision)


def zeros(editor: Editor, stem: str, count: int, precision: str) -> gs.Constant:
    """Zeros [count] of fp16 or bf16."""
    return held_constant(editor.fresh(stem), ACT_TYPES[precision], np.zeros(count, np.uint16))
