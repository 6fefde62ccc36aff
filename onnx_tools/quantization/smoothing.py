# SPDX-License-Identifier: Apache-2.0
"""Chooses the factors by which columns of activations are divided before they are rounded, and weights multiplied.

Xiao et al., "SmoothQuant", arXiv:2211.10438: a few columns of activations are much larger than the others, and would
leave these few of the steps of int8. Divided by a factor of its own, every column has as many, and the weights, which
have a scale per feature, take the factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..analysis import padfree_inputs
from ..files import Floats, Model
from ..passes.norms.folded_weights import values_of
from .calibration import Feeds, fetch_each
from .int8 import smoothing_factors
from .layers import Layer
from .losses import TENSORS_AT_ONCE, loss
from .options import QuantizationOptions
from .scales import TensorScale
from .weights import QuantizedWeights

STRENGTHS = (0.5, 0.65, 0.8, 0.9, 1.0)
"""How much of the differences between columns factors may move into the weights. Below a half, no GEMM of MiniLM or
mpnet lost least."""
MOST_ROWS = 256
"""The most tokens that strengths are compared on."""
LEAST_GAIN = 0.05
"""Factors are used where they lower the loss by this part."""


def choose_scales(
    model: Model,
    precision: str,
    layers: Sequence[Layer],
    largest: Mapping[str, Floats],
    options: QuantizationOptions,
    feeds: Feeds,
) -> dict[str, TensorScale]:
    """The scale of each tensor that GEMMs multiply, by its name, with the factors that lose least.

    Args:
        model: the model of the GEMMs in half precision, without function bodies.
        precision: its type.
        layers: the GEMMs; those that multiply one tensor share its factors.
        largest: of each column of the tensors.
        options: room and type.
        feeds: one batch.
    """
    scales = {name: _plain(float(columns.max()), options) for name, columns in largest.items()}
    if not options.number_format.smooths:
        return scales
    for name, values in fetch_each(model, precision, list(largest), feeds, at_once=TENSORS_AT_ONCE):
        readers = [layer for layer in layers if layer.x == name]
        scales[name] = _least_loss(name, values[:MOST_ROWS], readers, largest[name], options)
    return scales


def _plain(largest: float, options: QuantizationOptions) -> TensorScale:
    return TensorScale(options.number_format.activation_scale(largest, options.room))


def _least_loss(
    name: str, rows: Floats, readers: Sequence[Layer], columns: Floats, options: QuantizationOptions
) -> TensorScale:
    """The scale with the least sum of squared losses; without factors where these gain little."""
    quantizer = QuantizedWeights(options.number_format)
    weights = [values_of(padfree_inputs(layer.node)["weight"]) for layer in readers]

    def loss_of(scale: TensorScale) -> float:
        pairs = zip(readers, weights, strict=True)
        losses = [
            loss(layer.node, rows, weight, scale, quantizer.quantize(weight, scale), options.number_format).whole
            for layer, weight in pairs
        ]
        return float(np.square(losses).sum())

    plain = _plain(float(columns.max()), options)
    least, best = loss_of(plain) * (1 - LEAST_GAIN) ** 2, plain
    of_weights = np.max([np.abs(weight).max(axis=1) for weight in weights], axis=0)
    for strength in STRENGTHS:
        factors = smoothing_factors(columns, of_weights, strength)
        value = _plain(float((columns / factors).max()), options).value
        scale = TensorScale(value, factors, name, strength)
        if (now := loss_of(scale)) < least:
            least, best = now, scale
    return best
