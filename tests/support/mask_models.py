# SPDX-License-Identifier: Apache-2.0
"""Encoders written node by node, with masks of any name and type."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from .encoder import EncoderBuilder

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


class Builder(EncoderBuilder):
    """An encoder with inputs of any names and types."""

    def key(self, tensor: str) -> str:
        """Turns [B,S] into [B,1,1,S]."""
        return self.op("Unsqueeze", tensor, self.axes(1, 2))

    def number(self, value: int) -> str:
        return self.constant(value, np.int64)

    def add_mask(self, kept: str) -> str:
        """What a bool [B,S] adds to the scores: 0 for kept slots, float32's lowest for others."""
        return self.op("Where", self.key(kept), self.constant(0.0), self.constant(np.finfo(np.float32).min))

    def finish(self, hidden: str, inputs: dict[str, int], rank: int = 3) -> ModelProto:
        """The model with an output [B,S,E] and inputs of the given types."""
        result = self.op("Identity", hidden, output="result")
        graph = helper.make_graph(
            self.nodes,
            "encoder",
            [helper.make_tensor_value_info(name, kind, ["batch", "sequence"]) for name, kind in inputs.items()],
            [helper.make_tensor_value_info(result, FLOAT, ["batch", *[None] * (rank - 1)])],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def unproved_mask(*, mixed: bool = False) -> ModelProto:
    """A mask that the rewriter cannot follow: keys are hidden by a hyperbolic tangent of the mask.

    `mixed`: the row of the next slot is added to that of every token.
    """
    builder = Builder()
    x = builder.embedding()
    if mixed:
        rest = builder.op("Slice", x, builder.axes(1), builder.axes(2**31 - 1), builder.axes(1))
        pads = builder.constant([0, 0, 0, 0, 1, 0], np.int64)
        x = builder.op("Add", x, builder.op("Pad", rest, pads, builder.constant(0.0)))
    kept = builder.key(builder.op("Cast", "attention_mask", to=FLOAT))
    gone = builder.op("Tanh", builder.op("Sub", builder.constant(1.0), kept))
    mask = builder.op("Mul", gone, builder.constant(-1e6))
    return builder.finish(builder.layer(x, mask), {"input_ids": INT64, "attention_mask": INT64})
