# SPDX-License-Identifier: Apache-2.0
"""The metadata of a quantised model: which GEMMs are in e4m3 or int8, with which scales, and what they lose by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fields import MOST_INT64, Fields
from .names import FP8, INT8

TYPES = {"e4m3": FP8, "int8": INT8}
"""Types of 8 bits, with the precisions that ask for them."""


@dataclass(frozen=True)
class QuantizedLayer:
    """A GEMM in 8 bits.

    Attributes:
        name: its node's.
        x: the tensor that it multiplies by its weight.
        scale: what x is divided by.
        largest: the largest absolute value that x had in the calibration data; None without data.
        loss: how far its results were off on the calibration data, in parts of their length; None without data.
        loss_per_token: the same of each token's row, averaged; None without data.
        smoothing: the share of the columns of x whose largest number becomes that of int8, 0 to 1; None where each
            column has the same scale.
    """

    name: str
    x: str
    scale: float
    largest: float | None = None
    loss: float | None = None
    smoothing: float | None = None
    loss_per_token: float | None = None


@dataclass(frozen=True)
class QuantizationInfo:
    """A model whose GEMMs are in 8 bits.

    Attributes:
        type: the type of numbers, "e4m3" or "int8".
        margin: room above the largest numbers of the calibration data; None where the scales are those of the file
            that was quantised before.
        tokens: how many tokens the calibration data had.
        layers: GEMMs in that type.
        kept_gemms: the other GEMMs, with the reasons.
        share: the fraction in 8 bits of the multiplications of all GEMMs of tokens; None in files of earlier versions.
        cosines: by output, the mean over sequences of the cosine to the model in half precision.
    """

    type: str
    margin: float | None
    tokens: int
    layers: tuple[QuantizedLayer, ...]
    kept_gemms: Mapping[str, str]
    cosines: Mapping[str, float]
    share: float | None = None

    @property
    def precision(self) -> str:
        """What asks for it: fp8 or int8."""
        return TYPES[self.type]


def parse_quantization(fields: Fields) -> QuantizationInfo:
    """Checks and types the entry `quantization`; raises the error of `fields` for what is missing or wrong."""

    def read_layer(item: Fields) -> QuantizedLayer:
        scale = item.number("scale")
        if not scale > 0:
            raise item.fail("scale", "a number above 0")
        names = ("largest", "loss", "smoothing", "loss_per_token")
        numbers = (item.number(name) if name in item.names() else None for name in names)
        return QuantizedLayer(item.text("name"), item.text("x"), scale, *numbers)

    kept_layers, outputs = fields.optional_object("kept"), fields.optional_object("outputs")
    return QuantizationInfo(
        type=fields.text("type", tuple(TYPES)),
        margin=None if "kept_scales" in fields.names() else fields.number("margin"),
        tokens=fields.object("calibration").integer("tokens", most=MOST_INT64),
        layers=fields.objects("layers", read_layer),
        kept_gemms={name: kept_layers.string(name) for name in kept_layers.names()},
        cosines={name: outputs.object(name).number("mean_cosine") for name in outputs.names()},
        share=fields.number("share") if "share" in fields.names() else None,
    )
