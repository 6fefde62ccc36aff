# SPDX-License-Identifier: Apache-2.0
"""Makes BERTs with numpy, in the form that torch's TorchScript exporter (opset 17, sdpa attention) gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from .errors import RewriteError
from .files import MessageBuilder

_OPSET = 17
_EPSILON = 1e-12
_SCORE_GAIN = 2.0  # of query and key weights: it gives attention scores a standard deviation of about 4


def bert_model(
    num_layers: int = 12,
    hidden_size: int = 768,
    num_heads: int = 12,
    intermediate_size: int = 3072,
    vocab_size: int = 30522,
    max_positions: int = 512,
    seed: int = 0,
) -> ModelProto:
    """A BERT encoder with random weights, none of them trivial; without arguments it is a BERT-base.

    Inputs: input_ids, attention_mask, token_type_ids, int64 [B,S] with both axes dynamic. Outputs: last_hidden_state
    [B,S,E] and pooler_output [B,E], float32. The same arguments give the same model, bit for bit.
    Raises RewriteError for sizes that no model can have.
    """
    sizes = {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "intermediate_size": intermediate_size,
        "vocab_size": vocab_size,
        "max_positions": max_positions,
    }
    for name, value in sizes.items():
        if value < 1:
            raise RewriteError(f"{name} is {value}, allowed is 1 or more; give a larger {name}")
    if hidden_size % num_heads:
        raise RewriteError(
            f"hidden_size is {hidden_size}, allowed is a multiple of num_heads ({num_heads}); change one of them"
        )
    return _Bert(num_heads, hidden_size // num_heads, np.random.default_rng(seed)).model(
        num_layers, intermediate_size, vocab_size, max_positions
    )


class _Bert(MessageBuilder):
    """Collects nodes and weights; every method returns the name of the value that it makes."""

    def __init__(self, heads: int, head_size: int, rng: np.random.Generator) -> None:
        super().__init__(prefix="/")
        self.heads, self.head_size, self.width = heads, head_size, heads * head_size
        self.rng = rng
        self.weights: list[TensorProto] = []

    def model(self, layers: int, inner: int, vocabulary: int, positions: int) -> ModelProto:
        batch, length = self._dim("input_ids", 0), self._dim("input_ids", 1)
        x = self._embeddings(length, vocabulary, positions)
        mask = self._mask(batch, length)
        for layer in range(layers):
            x = self._layer(f"encoder.layer.{layer}", x, batch, length, mask, inner)
        self.graph.node[-1].output[0] = "last_hidden_state"
        first = self.op("Gather", "last_hidden_state", self.const(0), axis=1)
        weight = self.weight("pooler.dense.weight", (self.width, self.width), self.width**-0.5)
        bias = self.weight("pooler.dense.bias", (self.width,), 0.2)
        self.op("Tanh", self.op("Gemm", first, weight, bias, transB=1), output="pooler_output")

        def info(name: str, kind: int, *dims: str | int) -> Any:
            return helper.make_tensor_value_info(name, kind, dims)

        axes = ("batch", "sequence")
        graph = helper.make_graph(
            self.graph.node,
            "bert",
            [info(name, TensorProto.INT64, *axes) for name in ("input_ids", "attention_mask", "token_type_ids")],
            [
                info("last_hidden_state", TensorProto.FLOAT, *axes, self.width),
                info("pooler_output", TensorProto.FLOAT, "batch", self.width),
            ],
        )
        model = helper.make_model(
            graph, producer_name="padfree", opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8
        )
        model.graph.initializer.extend(self.weights)  # added last, as both helpers copy what they are given
        return model

    def const(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def weight(self, name: str, shape: tuple[int, ...], spread: float, mean: float = 0.0) -> str:
        values = self.rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(spread)
        values += np.float32(mean)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def _dim(self, value: str, axis: int) -> str:
        """A dimension as [1]."""
        scalar = self.op("Gather", self.op("Shape", value), self.const(axis), axis=0)
        return self.op("Unsqueeze", scalar, self.const([0]))

    def _norm(self, name: str, x: str) -> str:
        gamma = self.weight(f"{name}.weight", (self.width,), 0.2, mean=1.0)
        beta = self.weight(f"{name}.bias", (self.width,), 0.2)
        return self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=_EPSILON)

    def _linear(self, name: str, x: str, fan_in: int, fan_out: int, gain: float = 1.0) -> str:
        weight = self.weight(f"{name}.MatMul", (fan_in, fan_out), gain * fan_in**-0.5)
        bias = self.weight(f"{name}.bias", (fan_out,), 0.2)
        return self.op("Add", bias, self.op("MatMul", x, weight))

    def _embeddings(self, length: str, vocabulary: int, positions: int) -> str:
        words = self.weight("embeddings.word_embeddings.weight", (vocabulary, self.width), 0.5)
        position_table = self.weight("embeddings.position_embeddings.weight", (positions, self.width), 0.5)
        types = self.weight("embeddings.token_type_embeddings.weight", (2, self.width), 0.5)
        numbers = self.const(np.arange(positions)[None])
        numbers = self.op("Slice", numbers, self.const([0]), length, self.const([1]), self.const([1]))
        x = self.op("Add", self.op("Gather", words, "input_ids"), self.op("Gather", types, "token_type_ids"))
        return self._norm("embeddings.LayerNorm", self.op("Add", x, self.op("Gather", position_table, numbers)))

    def _mask(self, batch: str, length: str) -> str:
        """Bool [B,1,S,S]: the mask by indices into its flat form, as transformers' masking functions are traced."""
        is_token = self.op("Cast", "attention_mask", to=TensorProto.BOOL)
        ranges = []
        for size, axes in ((batch, ([1], [2], [3])), (length, ([0], [1], [2]))):
            count = self.op("Squeeze", size, self.const([0]))
            value = self.op("Range", self.const(0), count, self.const(1))
            for axis in axes:
                value = self.op("Unsqueeze", value, self.const(axis))
            ranges.append(value)
        row = self.op("Mul", ranges[0], self._dim_vector("attention_mask", 1))
        flat = self.op("Flatten", is_token, axis=2)
        rows = self.op("Gather", flat, self.op("Add", ranges[1], row), axis=0)
        shape = self.op("Concat", self.op("Shape", self.op("Add", ranges[1], row)), axis=0)
        rows = self.op("Reshape", self.op("Reshape", rows, self.const([-1])), shape, allowzero=0)
        both = self.op("And", self._always(), self.op("Cast", rows, to=TensorProto.BOOL))
        target = self.op("Concat", batch, self.const([-1]), length, self._dim("attention_mask", 1), axis=0)
        target = self.op("Reshape", target, self.const([-1]), allowzero=0)
        one = numpy_helper.from_array(np.array([1], np.int64))
        ones = self.op("ConstantOfShape", self.op("Shape", target), value=one)
        unknown = self.op("Equal", target, self.op("Mul", ones, self.const(-1)))
        return self.op("Expand", both, self.op("Where", unknown, ones, target))

    def _dim_vector(self, value: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", value), self.const([axis]), axis=0)

    def _always(self) -> str:
        true = numpy_helper.from_array(np.array([True]))
        return self.op("ConstantOfShape", self.const(np.zeros(0)), value=true)

    def _heads(self, x: str, batch: str, length: str, perm: list[int]) -> str:
        shape = self.op("Concat", batch, length, self.const([-1]), self.const([self.head_size]), axis=0)
        return self.op("Transpose", self.op("Reshape", x, shape, allowzero=0), perm=perm)

    def _attention(self, name: str, x: str, batch: str, length: str, mask: str) -> str:
        queries = self._linear(f"{name}.self.query", x, self.width, self.width, _SCORE_GAIN)
        keys = self._linear(f"{name}.self.key", x, self.width, self.width, _SCORE_GAIN)
        values = self._linear(f"{name}.self.value", x, self.width, self.width)
        q = self._heads(queries, batch, length, [0, 2, 1, 3])
        v = self._heads(values, batch, length, [0, 2, 1, 3])
        k = self._heads(keys, batch, length, [0, 2, 3, 1])
        root = self.const(self.head_size**-0.25, np.float32)  # sdpa scales both sides
        scores = self.op("MatMul", self.op("Mul", q, root), self.op("Mul", k, root))
        zero, hidden = self.const([0.0], np.float32), self.const([-np.inf], np.float32)
        weights = self.op("Softmax", self.op("Add", scores, self.op("Where", mask, zero, hidden)), axis=-1)
        weights = self.op("Where", self.op("IsNaN", weights), self.const([0.0], np.float32), weights)
        context = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        shape = self.op("Concat", batch, length, self.const([-1]), axis=0)
        return self.op("Reshape", context, shape, allowzero=0)

    def _layer(self, name: str, x: str, batch: str, length: str, mask: str, inner: int) -> str:
        context = self._attention(f"{name}.attention", x, batch, length, mask)
        y = self._linear(f"{name}.attention.output.dense", context, self.width, self.width)
        x = self._norm(f"{name}.attention.output.LayerNorm", self.op("Add", y, x))
        y = self._linear(f"{name}.intermediate.dense", x, self.width, inner)
        erf = self.op("Erf", self.op("Div", y, self.const(np.sqrt(2), np.float32)))
        y = self.op("Mul", y, self.op("Add", erf, self.const(1.0, np.float32)))
        y = self.op("Mul", y, self.const(0.5, np.float32))
        y = self._linear(f"{name}.output.dense", y, inner, self.width)
        return self._norm(f"{name}.output.LayerNorm", self.op("Add", y, x))
