# SPDX-License-Identifier: Apache-2.0
"""Writes tiny encoders node by node, for tests of the rewriter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

VOCABULARY, HIDDEN, HEADS, POSITIONS = 20, 16, 2, 32
TOKENS = ["batch", "sequence", HIDDEN]


class EncoderBuilder:
    """Adds nodes to a graph; every method returns the name of a tensor."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._rng = np.random.default_rng(seed)

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def weight(self, *shape: int, center: float = 0.0) -> str:
        return self.constant(center + self._rng.standard_normal(shape) * 0.4)

    def op(self, op: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"t{len(self.nodes)}"
        domain = attributes.pop("domain", "")
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n{len(self.nodes)}", domain=domain, **attributes))
        return name

    def axes(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def norm(self, x: str, width: int = HIDDEN) -> str:
        gamma, beta = self.weight(width, center=1.0), self.weight(width)
        return self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5)

    def embedding(self) -> str:
        words = self.op("Gather", self.weight(VOCABULARY, HIDDEN), "input_ids")
        length = self.op("Slice", self.op("Shape", "input_ids"), self.axes(1), self.axes(2), self.axes(0))
        slots = self.op("Slice", self.constant([range(POSITIONS)], np.int64), self.axes(0), length, self.axes(1))
        positions = self.op("Gather", self.weight(POSITIONS, HIDDEN), slots)
        return self.norm(self.op("Add", words, positions))

    def padding_mask(self) -> str:
        """An additive mask [B,1,1,S]: 0 for kept keys and -10000 for masked ones."""
        mask = self.op("Unsqueeze", "attention_mask", self.axes(1, 2))
        masked = self.op("Sub", self.constant(1.0), self.op("Cast", mask, to=TensorProto.FLOAT))
        return self.op("Mul", masked, self.constant(-10000.0))

    def causal_mask(self) -> str:
        """An additive mask [S,S]: 0 for keys up to the query and -10000 for later ones."""
        length = self.op("Squeeze", self.op("Shape", "input_ids", start=1))
        steps = self.op("Range", self.constant(0, np.int64), length, self.constant(1, np.int64))
        later = self.op("Greater", self.op("Unsqueeze", steps, self.axes(0)), self.op("Unsqueeze", steps, self.axes(1)))
        return self.op("Where", later, self.constant(-10000.0), self.constant(0.0))

    def heads(self, x: str, perm: Sequence[int], heads: int = HEADS) -> str:
        shape = self.axes(0, 0, heads, HIDDEN // heads)
        return self.op("Transpose", self.op("Reshape", x, shape), perm=perm)

    def attention(self, x: str, mask: str | None, *, scale: float = 0.35, heads: int = HEADS) -> str:
        """Attention and output projection of x [B,S,E], without the residual."""
        q = self.heads(self.linear(x, HIDDEN, HIDDEN), [0, 2, 1, 3], heads)
        k = self.heads(self.linear(x, HIDDEN, HIDDEN), [0, 2, 3, 1], heads)
        v = self.heads(self.linear(x, HIDDEN, HIDDEN), [0, 2, 1, 3], heads)
        scores = self.op("Mul", self.op("MatMul", q, k), self.constant(scale))
        if mask is not None:
            scores = self.op("Add", scores, mask)
        context = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        joined = self.op("Reshape", self.op("Transpose", context, perm=[0, 2, 1, 3]), self.axes(0, 0, HIDDEN))
        return self.linear(joined, HIDDEN, HIDDEN)

    def layer(self, x: str, mask: str | None, heads: int = HEADS) -> str:
        return self.norm(self.op("Add", self.attention(x, mask, heads=heads), x))

    def model(self, outputs: Mapping[str, Sequence[Any]], *, opset: int = 17, more: Sequence[str] = ()) -> ModelProto:
        """The model; `outputs` are names and shapes, `more` are inputs in addition to ids and mask."""
        dims = ["batch", "sequence"]
        graph = helper.make_graph(
            self.nodes,
            "encoder",
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, dims)
                for name in ("input_ids", "attention_mask", *more)
            ],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            self.constants,
        )
        domains = {"": opset} | {node.domain: 1 for node in self.nodes if node.domain}
        imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        onnx.checker.check_model(model)
        return model


def one_layer() -> tuple[EncoderBuilder, str]:
    """An encoder of one layer, and its last hidden state [B,S,E]."""
    builder = EncoderBuilder()
    return builder, builder.layer(builder.embedding(), builder.padding_mask())


def with_output(tail: str, builder: EncoderBuilder, shape: list[object], *more: str) -> ModelProto:
    """The model whose output "y" is this tensor; `more` are inputs in addition to ids and mask."""
    builder.op("Identity", tail, output="y")
    return builder.model({"y": shape}, more=more)
