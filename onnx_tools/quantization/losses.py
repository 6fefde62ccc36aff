# SPDX-License-Identifier: Apache-2.0
"""The loss of each GEMM in 8 bits: its result from rounded factors beside the exact one, on calibration data.

Rounding moves a result on average, too: activations below half a step become zeros, and an error of a weight is
multiplied by its column's mean. In int8 the bias takes that mean away (Nagel et al., "Data-free quantization through
weight equalization and bias correction", arXiv:1906.04721).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ..analysis import padfree_inputs
from ..files import Floats, Model
from ..passes.norms.folded_weights import values_of
from .calibration import Feeds, fetch_each
from .formats import Format
from .layers import Layer
from .scales import TensorScale
from .weights import QuantizedWeight, QuantizedWeights

MOST_ROWS = 2048
"""The most tokens that losses are measured on."""
TENSORS_AT_ONCE = 16
_SHORTEST = 0.1
"""Rows whose results are shorter than this part of the median length count as if they had that length."""


@dataclass(frozen=True, eq=False)
class Loss:
    """How far a GEMM's result [T,N] is off, after its bias was corrected if the type of 8 bits asks for that.

    A few tokens may have results that are many times as long as all others'. They decide the first figure, while their
    scale leaves few steps to the other tokens, which the second one shows.

    Attributes:
        whole: the length of the error, relative to the result's.
        per_token: the same of each token's row, averaged.
        shift: the mean error, float32 [N], which the bias takes away; None where biases stay as they are.
    """

    whole: float
    per_token: float
    shift: Floats | None = None


class ExactResult:
    """A GEMM's exact result on rows of calibration data, beside which those of rounded factors are held.

    The result is the product, with the norm that the GEMM applies, but without the bias and the steps after it, which
    may hide or repeat a loss.
    """

    def __init__(self, node: gs.Node, rows: Floats, weight: Floats) -> None:
        """Takes the GEMM, rows [T,K] and its weight [K,N]."""
        self._rows, self._roots = rows, _roots(node, rows)
        self._exact = rows @ weight / self._roots
        self._lengths = np.linalg.norm(self._exact, axis=1)
        self.weight = weight

    @property
    def importance(self) -> Floats:
        """The share of each row in mean errors [T]: errors count relative to their row's length."""
        with np.errstate(invalid="ignore"):
            shortest = _SHORTEST * float(np.median(self._lengths)) if self._lengths.size else 0.0
            squares = np.square(np.maximum(self._lengths, max(shortest, np.finfo(np.float32).tiny), dtype=np.float64))
        shares = 1 / squares
        result: Floats = (shares / shares.sum()).astype(np.float32) if shares.size else shares.astype(np.float32)
        return result

    def loss(self, scale: TensorScale, quantized: QuantizedWeight, number_format: Format) -> Loss:
        """The loss of rounded factors; infinite where a result is not finite."""
        step = np.float32(scale.value)
        narrow = number_format.round_values(scale.smooth(self._rows) / step) * step
        error = narrow @ quantized.dequantize().T / self._roots - self._exact
        if not np.isfinite(error).all():
            return Loss(float("inf"), float("inf"))
        shift = None
        if number_format.corrects_bias:
            shift = self.importance @ error
            error -= shift
        off, length = np.linalg.norm(error, axis=1), self._lengths
        parts = np.divide(off, length, out=np.zeros_like(off), where=length > 0)
        whole = float(np.linalg.norm(off) / np.linalg.norm(length)) if length.any() else 0.0
        return Loss(whole, float(parts.mean()) if parts.size else 0.0, shift)


def _roots(node: gs.Node, rows: Floats) -> Floats:
    """What a GEMM divides its product by, [T,1]: the norm of the exact rows, or ones where it has none."""
    if not node.attrs["has_x_moments"]:
        return np.ones((len(rows), 1), np.float32)
    squares = np.square(rows).mean(axis=1, keepdims=True) if node.attrs["rms"] else rows.var(axis=1, keepdims=True)
    roots: Floats = np.sqrt(squares + np.float32(node.attrs["x_epsilon"]))
    return roots


def measure_losses(
    model: Model,
    precision: str,
    layers: Sequence[Layer],
    scales: Mapping[str, TensorScale],
    weights: QuantizedWeights,
    feeds: Feeds,
    number_format: Format,
) -> dict[str, Loss]:
    """How far the results of GEMMs are off, relative to the results' norms, by the GEMMs' names.

    Args:
        model: the model of the GEMMs in half precision, without function bodies.
        precision: its type.
        layers: the GEMMs, PadfreeLinear nodes.
        scales: those of the tensors that they multiply.
        weights: theirs, in 8 bits.
        feeds: one batch.
        number_format: the 8-bit type.
    """
    names = list(dict.fromkeys(layer.x for layer in layers))
    losses = dict[str, Loss]()
    for name, values in fetch_each(model, precision, names, feeds, at_once=TENSORS_AT_ONCE):
        for layer in layers:
            if layer.x == name:
                weight, scale = padfree_inputs(layer.node)["weight"], scales[name]
                exact = ExactResult(layer.node, values[:MOST_ROWS], values_of(weight))
                losses[layer.name] = exact.loss(scale, weights.of(weight, scale), number_format)
    return {layer.name: losses[layer.name] for layer in layers}
