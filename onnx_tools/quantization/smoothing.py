# SPDX-License-Identifier: Apache-2.0
"""Chooses the factors by which columns of activations are divided before they are rounded, and weights multiplied.

Xiao et al., "SmoothQuant", arXiv:2211.10438: a few columns of activations are much larger than the others, and would
leave these few of the steps of int8. Divided by a factor of its own, every column has as many, and the weights, which
have a scale per feature, take the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..analysis import padfree_inputs
from ..files import Floats, Model
from ..passes.norms.folded_weights import values_of
from .calibration import Feeds, fetch_each
from .int8 import equal_cost_factors, floored_factors
from .layers import Layer
from .losses import TENSORS_AT_ONCE, ExactResult
from .options import QuantizationOptions
from .scales import TensorScale
from .weights import QuantizedWeights

MOST_ROWS = 256
"""The most tokens that factors are compared on."""
_FLOORS = 10
"""Floors are compared by powers of two below the highest one, and by a half of one around the best."""
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
        scales[name] = _least_loss(name, _spread(values), readers, largest[name], options)
    return scales


def _spread(values: Floats) -> Floats:
    """At most MOST_ROWS rows at regular intervals."""
    return values[:: -(-len(values) // MOST_ROWS)]


def _plain(largest: float, options: QuantizationOptions) -> TensorScale:
    return TensorScale(options.number_format.activation_scale(largest, options.room))


def _least_loss(
    name: str, rows: Floats, readers: Sequence[Layer], columns: Floats, options: QuantizationOptions
) -> TensorScale:
    """The scale with the least sum of squared losses per token; without factors where these gain little."""
    quantizer, number_format = QuantizedWeights(options.number_format), options.number_format
    results = [ExactResult(layer.node, rows, values_of(padfree_inputs(layer.node)["weight"])) for layer in readers]

    def loss_of(scale: TensorScale) -> float:
        losses = (result.loss(scale, quantizer.quantize(result.weight, scale), number_format) for result in results)
        return sum(item.per_token**2 for item in losses)

    importance = np.mean([result.importance for result in results], axis=0)
    lengths = np.sqrt(sum(np.square(result.weight).sum(axis=1) for result in results))
    equal_cost = equal_cost_factors(_deviations(rows, importance), lengths)
    highest = float((columns / equal_cost).max())
    trials = dict[float, tuple[float, TensorScale]]()

    def trial(power: float) -> float:
        """The loss of floors that are 2^-power of the highest ones that have an effect."""
        floors = equal_cost * np.float32(highest * 2.0**-power)
        factors = floored_factors(columns, floors)
        value = _plain(float((columns / factors).max()), options).value
        scale = TensorScale(value, factors, name, float((columns > floors).mean()))
        trials[power] = loss_of(scale), scale
        return trials[power][0]

    _search(trial)
    least, best = min(trials.values(), key=lambda item: item[0])
    plain = _plain(float(columns.max()), options)
    return best if least < loss_of(plain) * (1 - LEAST_GAIN) ** 2 else plain


def _search(trial: Callable[[float], float]) -> None:
    """Tries powers of two until the loss has grown twice, then the halves beside the best."""
    losses = list[float]()
    for power in range(1, _FLOORS):
        losses.append(trial(power))
        if len(losses) - 1 - int(np.argmin(losses)) > 1:
            break
    best = 1 + int(np.argmin(losses))
    for beside in (best - 0.5, best + 0.5):
        trial(beside)


def _deviations(rows: Floats, importance: Floats) -> Floats:
    """The standard deviation of each column of rows [T,K], with the importance of each row [T]."""
    deviations: Floats = np.sqrt(importance @ np.square(rows - importance @ rows))
    return deviations
