# SPDX-License-Identifier: Apache-2.0
"""The loss of each GEMM in 8 bits: its result from rounded factors beside the exact one, on calibration data."""

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

MOST_ROWS = 1024
"""The most tokens that losses are measured on."""
TENSORS_AT_ONCE = 16


@dataclass(frozen=True)
class Loss:
    """How far a GEMM's result [T,N] is off.

    A few tokens may have results that are many times as long as all others'. They decide the first figure, while their
    scale leaves few steps to the other tokens, which the second one shows.

    Attributes:
        whole: the length of the error, relative to the result's.
        per_token: the same of each token's row, averaged.
    """

    whole: float
    per_token: float


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

    A GEMM's result is its product, with the norm that it applies, but without the bias and the steps after it, which
    may hide or repeat a loss.
    """
    names = list(dict.fromkeys(layer.x for layer in layers))
    losses = dict[str, Loss]()
    for name, values in fetch_each(model, precision, names, feeds, at_once=TENSORS_AT_ONCE):
        for layer in layers:
            if layer.x == name:
                weight, rows, scale = padfree_inputs(layer.node)["weight"], values[:MOST_ROWS], scales[name]
                quantized = weights.of(weight, scale)
                losses[layer.name] = loss(layer.node, rows, values_of(weight), scale, quantized, number_format)
    return {layer.name: losses[layer.name] for layer in layers}


def loss(
    node: gs.Node, x: Floats, weight: Floats, scale: TensorScale, quantized: QuantizedWeight, number_format: Format
) -> Loss:
    """The loss of one GEMM of rows x [T,K] by a weight [K,N]; infinite where the result is not finite."""
    step = np.float32(scale.value)
    narrow = number_format.round_values(scale.smooth(x) / step) * step
    exact, approximate = (_norm(node, x, result) for result in (x @ weight, narrow @ quantized.dequantize().T))
    off, length = (np.linalg.norm(values, axis=1) for values in (approximate - exact, exact))
    if not np.isfinite(off).all():
        return Loss(float("inf"), float("inf"))
    parts = np.divide(off, length, out=np.zeros_like(off), where=length > 0)
    whole = float(np.linalg.norm(off) / np.linalg.norm(length)) if length.any() else 0.0
    return Loss(whole, float(parts.mean()) if parts.size else 0.0)


def _norm(node: gs.Node, x: Floats, result: Floats) -> Floats:
    """The result with the norm of the rows of x, where the GEMM has one: its moments are those of the exact rows."""
    if not node.attrs["has_x_moments"]:
        return result
    epsilon = np.float32(node.attrs["x_epsilon"])
    squares = (x * x).mean(axis=1, keepdims=True) if node.attrs["rms"] else x.var(axis=1, keepdims=True)
    normed: Floats = result / np.sqrt(squares + epsilon)
    return normed
