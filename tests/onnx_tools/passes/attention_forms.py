# SPDX-License-Identifier: Apache-2.0
"""Attention with positions in it, node by node: windows, biases by distance, rotary embeddings, shared heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper
from padfree.onnx_tools import RewriteResult, rewrite

from tests.onnx_tools.agreement import assert_agree
from tests.support.encoder import HIDDEN, TOKENS, VOCABULARY, EncoderBuilder, with_output

HEADS, SIZE = 4, 4
MANY = 2**31 - 1
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class PositionedBuilder(EncoderBuilder):
    """An encoder without a table of positions: sequences may have any length."""

    def embedding(self) -> str:
        return self.norm(self.op("Gather", self.weight(VOCABULARY, HIDDEN), "input_ids"))

    def number(self, value: int) -> str:
        return self.constant(value, np.int64)

    def steps(self, *axes: int) -> str:
        """0, 1, 2, ..., unsqueezed at these axes."""
        length = self.op("Squeeze", self.op("Shape", "input_ids", start=1))
        steps = self.op("Range", self.number(0), length, self.number(1))
        return self.op("Unsqueeze", steps, self.axes(*axes))

    def distance(self) -> str:
        """Key position minus query position, [S,S]."""
        return self.op("Sub", self.steps(0), self.steps(1))

    def low(self, kept: str, value: float = -10000.0) -> str:
        return self.op("Where", kept, self.constant(0.0), self.constant(value))

    def kept_keys(self) -> str:
        """Bool [B,1,1,S]."""
        mask = self.op("Unsqueeze", "attention_mask", self.axes(1, 2))
        return self.op("Cast", mask, to=TensorProto.BOOL)

    def split(self, x: str, heads: int = HEADS) -> str:
        """[B,heads,S,D] of a projection of x."""
        result = self.op("Reshape", self.linear(x, HIDDEN, heads * SIZE), self.axes(0, 0, heads, SIZE))
        return self.op("Transpose", result, perm=[0, 2, 1, 3])

    def columns(self, x: str, start: int, end: int, step: int = 1) -> str:
        return self.op("Slice", x, self.axes(start), self.axes(end), self.axes(3), self.axes(step))

    def attend(self, x: str, q: str, k: str, v: str, *added: str, scale: float = 0.6) -> str:
        """A layer of heads [B,H,S,D]; `added` is added to the scores, one tensor after the other."""
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(scale))
        for item in added:
            scores = self.op("Add", scores, item)
        context = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        joined = self.op("Reshape", self.op("Transpose", context, perm=[0, 2, 1, 3]), self.axes(0, 0, HIDDEN))
        return self.norm(self.op("Add", self.linear(joined, HIDDEN, HIDDEN), x))


Added = Callable[[PositionedBuilder], Sequence[str]]
Rotate = Callable[[PositionedBuilder, str], str]


def with_added(added: Added) -> ModelProto:
    """One layer with what is added to its scores."""
    b = PositionedBuilder()
    x = b.embedding()
    return with_output(b.attend(x, b.split(x), b.split(x), b.split(x), *added(b)), b, TOKENS)


def rotary_layer(rotate: Rotate, keys: Rotate | None = None, *more: str) -> ModelProto:
    """One layer whose Q and K are rotated by positions; K may be rotated differently. `more` are further inputs."""
    b = PositionedBuilder()
    x = b.embedding()
    q, k = rotate(b, b.split(x)), (keys or rotate)(b, b.split(x))
    return with_output(b.attend(x, q, k, b.split(x), b.padding_mask()), b, TOKENS, *more)


def attributes(result: RewriteResult, op: str = "PadfreeAttention") -> list[dict[str, Any]]:
    """The attributes of every node of an operator."""
    nodes = [node for node in result.model.graph.node if node.op_type == op]
    return [{item.name: helper.get_attribute_value(item) for item in node.attribute} for node in nodes]


def miss_reason(result: RewriteResult) -> str:
    return "; ".join(miss.reason for item in result.report.passes for miss in item.missed)


def assert_stays_on_islands(model: ModelProto, reason: str) -> None:
    """The attentions stay padded for the reason given, and the results are the same."""
    result = rewrite(model)
    assert "PadfreeAttention" not in result.report.plugins
    assert reason in miss_reason(result)
    assert_agree(model, result)
