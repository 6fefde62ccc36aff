# SPDX-License-Identifier: Apache-2.0
"""Adds the nodes of a head to a model's message, as its version of the standard operators wants them."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto
from padfree.onnx_tools.files import MessageBuilder


class HeadBuilder(MessageBuilder):
    """Writes the nodes of a head after those of a model."""

    def __init__(self, model: ModelProto) -> None:
        version = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
        super().__init__(model.graph, "padfree_head_", version)

    def at_least(self, x: str, low: float) -> str:
        """Elements of x, none below a number."""
        if self.opset >= 11:
            return self.op("Clip", x, self.constant(low))
        return self.op("Clip", x, min=low)

    def to_float(self, x: str) -> str:
        """x in float32."""
        return self.op("Cast", x, to=TensorProto.FLOAT)

    def gelu(self, x: str) -> str:
        """x * (1 + erf(x / sqrt(2))) / 2."""
        scaled = self.op("Div", x, self.constant(np.sqrt(2)))
        risen = self.op("Add", self.op("Erf", scaled), 1.0)
        return self.op("Mul", self.op("Mul", x, risen), 0.5)

    def log1p(self, x: str) -> str:
        """log(1 + x)."""
        return self.op("Log", self.op("Add", x, 1.0))

    def activation(self, name: str, x: str) -> str:
        """One of padfree.builder.folders.head.ACTIVATIONS."""
        if name == "identity":
            return x
        if name == "gelu":
            return self.gelu(x)
        if name == "silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        if name == "softmax":
            return self.op("Softmax", x, axis=-1)
        return self.op({"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}[name], x)
