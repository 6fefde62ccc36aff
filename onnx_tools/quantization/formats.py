# SPDX-License-Identifier: Apache-2.0
"""The types of 8 bits that GEMMs are quantised to: how they round, and which scales they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx import TensorProto
from padfree.contract.names import FP8, INT8

from ..files import Floats
from . import e4m3, int8
from .e4m3 import Bytes

_USUAL_COSINE_E4M3 = 0.98
"""Trained models keep 0.997 (docs/guide/fp8.md); random weights with sharp attention went down to 0.96."""
_USUAL_COSINE_INT8 = 0.995
"""The goal; MiniLM, bge-small and mpnet reach it with all GEMMs in int8 (docs/guide/int8.md)."""


@dataclass(frozen=True)
class Format:
    """A type of 8 bits.

    Attributes:
        name: the type's, as the metadata and the attribute `results` have it.
        precision: what asks for it.
        operator: that of its GEMMs.
        element_type: TensorProto's.
        margin: usual room above the largest number of the calibration data.
        corrects_bias: whether the bias of a GEMM takes away its mean error.
        smooths: whether columns may be divided by factors before they are rounded, as all numbers of the type are
            equally far apart: one large column would leave few steps to all others.
        usual_cosine: the least cosine of outputs, averaged over sequences, that calls for no warning.
        activation_scale: the scale of a tensor from its largest number and the margin.
        narrow: rounds numbers that were divided by their scale.
        quantized_rows: numbers [N,K] and scales [N] of weights [N,K].
    """

    name: str
    precision: str
    operator: str
    element_type: int
    margin: float
    smooths: bool
    corrects_bias: bool
    usual_cosine: float
    activation_scale: Callable[[float, float], float]
    narrow: Callable[[Floats], Bytes]
    quantized_rows: Callable[[Floats], tuple[Bytes, Floats]]

    def round_values(self, values: Floats) -> Floats:
        """Numbers that were divided by their scale, rounded, as float32."""
        return self.narrow(values).astype("float32")


E4M3 = Format(
    "e4m3",
    FP8,
    "PadfreeLinearFp8",
    TensorProto.FLOAT8E4M3FN,
    2.0,
    False,
    False,
    _USUAL_COSINE_E4M3,
    e4m3.activation_scale,
    e4m3.narrow,
    e4m3.quantized_rows,
)
INT8_FORMAT = Format(
    "int8",
    INT8,
    "PadfreeLinearInt8",
    TensorProto.INT8,
    1.25,
    True,
    True,
    _USUAL_COSINE_INT8,
    int8.activation_scale,
    int8.narrow,
    int8.quantized_rows,
)
FORMATS = {item.precision: item for item in (E4M3, INT8_FORMAT)}
"""By the precision that asks for them."""
