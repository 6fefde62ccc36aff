# SPDX-License-Identifier: Apache-2.0
"""The metadata of a model in fp8: which GEMMs are in e4m3, with which scales, and what they lose by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import MOST_INT64, Fields

TYPES = ("e4m3",)


@dataclass(frozen=True)
class QuantizedLayer:
    """A GEMM in e4m3.

    Attributes:
        name: its node's.
        x: the tensor that it multiplies by its weight.
        largest: the largest absolute value that x had in the calibration data.
        scale: what x is divided by.
        loss: how far its results were off on the calibration data, in parts of their length.
    """

    name: str
    x: str
    largest: float
    scale: float
    loss: float


@dataclass(frozen=True)
class QuantizationInfo:
    """A model whose GEMMs are in e4m3.

    Attributes:
        type: of numbers, "e4m3".
        margin: room above the largest numbers of the calibration data.
        tokens: how many tokens the calibration data had.
        layers: GEMMs in that type.
        kept_gemms: the other GEMMs, with the reasons.
        cosines: by output, the mean over sequences of the cosine to the model in half precision.
    """

    type: str
    margin: float
    tokens: int
    layers: tuple[QuantizedLayer, ...]
    kept_gemms: Mapping[str, str]
    cosines: Mapping[str, float]


def parse_quantization(fields: Fields) -> QuantizationInfo:
    """Checks and types the entry `quantization`; raises the error of `fields` for what is missing or wrong."""

    def read_layer(item: Fields) -> QuantizedLayer:
        scale = item.number("scale")
        if not scale > 0:
            raise item.fail("scale", "a number above 0")
        return QuantizedLayer(item.text("name"), item.text("x"), item.number("largest"), scale, item.number("loss"))

    kept_layers, outputs = fields.optional_object("kept"), fields.optional_object("outputs")
    return QuantizationInfo(
        type=fields.text("type", TYPES),
        margin=fields.number("margin"),
        tokens=fields.object("calibration").integer("tokens", most=MOST_INT64),
        layers=fields.objects("layers", read_layer),
        kept_gemms={name: kept_layers.string(name) for name in kept_layers.names()},
        cosines={name: outputs.object(name).number("mean_cosine") for name in outputs.names()},
    )
