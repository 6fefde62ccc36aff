# SPDX-License-Identifier: Apache-2.0
"""Which GEMMs a quantisation puts in 8 bits, what the metadata say about it, and whether a model loses too much."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import VerificationError
from ..files import Floats
from .calibration import Feeds
from .effect import Effect
from .formats import Format
from .layers import Layer, Layers
from .losses import Loss
from .options import QuantizationOptions
from .scales import TensorScale

LEAST_COSINE = 0.9
"""Cosine of an output, averaged over sequences, below which something is wrong."""
_WORST_SHOWN = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Selection:
    """Which GEMMs go to 8 bits, their tensors' scales, and what was measured.

    stream_loss: the largest loss of a GEMM that reads a stream, whether it goes to 8 bits or not.
    norm_loss: the same of all GEMMs that fold a norm.
    keeps_scales: whether scales and weights are those of a file that was quantised before.
    """

    layers: Layers
    largest: Mapping[str, float]
    scales: Mapping[str, TensorScale]
    losses: Mapping[str, Loss]
    stream_loss: float = 0.0
    norm_loss: float = 0.0
    keeps_scales: bool = False

    @property
    def shifts(self) -> dict[str, Floats]:
        """What biases take away from results, by the names of the GEMMs."""
        return {name: loss.shift for name, loss in self.losses.items() if loss.shift is not None}


def describe(
    selection: Selection,
    metadata: Mapping[str, Any],
    options: QuantizationOptions,
    batches: Sequence[Feeds],
    effects: Mapping[str, Effect],
    gemm_sizes: Mapping[str, int],
) -> dict[str, Any]:
    """The entry `quantization` of the metadata."""
    tokens = next(item["name"] for item in metadata["inputs"] if item["role"] == "tokens")
    room = {"kept_scales": True} if selection.keeps_scales else {"margin": options.room}
    target = {} if options.least_cosine is None else {"least_cosine": options.least_cosine}
    return {
        "type": options.number_format.name,
        **room,
        "largest_loss": options.largest_loss,
        **target,
        "share": sum(gemm_sizes[layer.name] for layer in selection.layers.chosen_layers) / sum(gemm_sizes.values()),
        "calibration": {"batches": len(batches), "tokens": sum(int(feeds[tokens].size) for feeds in batches)},
        "layers": [_layer_json(layer, selection) for layer in selection.layers.chosen_layers],
        "kept": dict(selection.layers.kept_layers),
        "outputs": {name: effect.to_dict() for name, effect in effects.items()},
    }


def _layer_json(layer: Layer, selection: Selection) -> dict[str, Any]:
    """A layer's entry, without what was not measured."""
    scale, losses = selection.scales[layer.x], selection.losses
    result: dict[str, Any] = {"name": layer.name, "x": layer.x, "scale": scale.value}
    if losses:
        result |= {"largest": selection.largest[layer.x], "loss": losses[layer.name].whole}
        result["loss_per_token"] = losses[layer.name].per_token
    return result if scale.strength is None else result | {"smoothing": scale.strength}


def check_effects(effects: Mapping[str, Effect], losses: Mapping[str, Loss], number_format: Format) -> None:
    """Warns of an output that is far off, and raises VerificationError for one that is too far off."""
    for name, effect in effects.items():
        if effect.mean_cosine >= number_format.usual_cosine:
            continue
        worst = sorted(losses, key=lambda layer: -losses[layer].per_token)[:_WORST_SHOWN]
        losses_text = ", ".join(f"'{layer}' ({losses[layer].per_token:.3f})" for layer in worst)
        problem = (
            f"in {number_format.precision} the cosine of output '{name}' to that of the model in half precision is "
            f"{effect.mean_cosine:.4f} on average over {effect.sequences} sequences of the calibration data, trained "
            f"models keep 0.997; the GEMMs that lose most per token are {losses_text}: keep them with --keep, "
            "let calibration keep enough of them with --least-cosine 0.995, or choose precision fp16"
        )
        if not effect.mean_cosine >= LEAST_COSINE:
            raise VerificationError(f"{problem}; allowed is {LEAST_COSINE}")
        logger.warning("%s", problem)
