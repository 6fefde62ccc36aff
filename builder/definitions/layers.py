# SPDX-License-Identifier: Apache-2.0
"""Parts that all encoders are made of: linear layers, norms, activations, feed-forward networks, embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .errors import NotDefinedError
from .graph import IDS, TYPES, EncoderGraph
from .keys import Keys
from .tensors import Tensors, Weight


@dataclass(frozen=True)
class Linear:
    """x @ weight^T + bias; weight is [out, in]."""

    weight: Weight
    bias: Weight | None

    @classmethod
    def of(cls, tensors: Tensors, name: str, outputs: int, inputs: int, *, bias: bool = True) -> Linear:
        """The layer of this name, as torch.nn.Linear has it."""
        weight = tensors.take(f"{name}.weight", outputs, inputs)
        return cls(weight, tensors.take(f"{name}.bias", outputs) if bias else None)

    def split(self, *sizes: int) -> tuple[Linear, ...]:
        """The parts of a fused layer, with so many outputs each."""
        parts, begin = [], 0
        for size in sizes:
            bias = None if self.bias is None else self.bias.rows(begin, begin + size)
            parts.append(Linear(self.weight.rows(begin, begin + size), bias))
            begin += size
        return tuple(parts)

    def apply(self, graph: EncoderGraph, x: str) -> str:
        """The layer of x [..., in]: [..., out]."""
        matmul = graph.op("MatMul", x, graph.weight(self.weight.transpose()))
        return matmul if self.bias is None else graph.op("Add", matmul, graph.weight(self.bias))


@dataclass(frozen=True)
class Norm:
    """A layer norm over the last axis, or an RMS norm."""

    weight: Weight
    bias: Weight | None
    epsilon: float
    is_rms: bool = False

    @classmethod
    def of(cls, tensors: Tensors, name: str, width: int, epsilon: float, *, bias: bool = True) -> Norm:
        """A layer norm of this name."""
        old = f"{name}.gamma" in tensors  # TensorFlow's names, in old files
        weight, shift = ("gamma", "beta") if old else ("weight", "bias")
        return cls(
            tensors.take(f"{name}.{weight}", width),
            tensors.take(f"{name}.{shift}", width) if bias else None,
            epsilon,
        )

    @classmethod
    def rms(cls, tensors: Tensors, name: str, width: int, epsilon: float, *, plus: float = 0.0) -> Norm:
        """An RMS norm of this name, whose scale is its weight and `plus`."""
        weight = tensors.take(f"{name}.weight", width)
        return cls(weight.shift(plus) if plus else weight, None, epsilon, is_rms=True)

    def apply(self, graph: EncoderGraph, x: str) -> str:
        """The norm of x [..., W]."""
        scale = graph.weight(self.weight)
        if not self.is_rms:
            inputs = (x, scale) if self.bias is None else (x, scale, graph.weight(self.bias))
            return graph.op("LayerNormalization", *inputs, axis=-1, epsilon=self.epsilon)
        squares = graph.op("ReduceMean", graph.op("Mul", x, x), axes=[-1], keepdims=1)
        root = graph.op("Sqrt", graph.op("Add", squares, graph.constant(self.epsilon)))
        return graph.op("Mul", graph.op("Div", x, root), scale)


def _gelu(graph: EncoderGraph, x: str) -> str:
    return _half_gated(graph, x, graph.op("Erf", graph.op("Div", x, math.sqrt(2))))


def _gelu_by_tanh(graph: EncoderGraph, x: str) -> str:
    cube = graph.op("Mul", graph.op("Mul", x, graph.op("Mul", x, x)), 0.044715)
    inner = graph.op("Mul", graph.op("Add", x, cube), math.sqrt(2 / math.pi))
    return _half_gated(graph, x, graph.op("Tanh", inner))


def _half_gated(graph: EncoderGraph, x: str, gate: str) -> str:
    return graph.op("Mul", graph.op("Mul", x, 0.5), graph.op("Add", gate, 1.0))


def _quick_gelu(graph: EncoderGraph, x: str) -> str:
    return graph.op("Mul", x, graph.op("Sigmoid", graph.op("Mul", x, 1.702)))


def _silu(graph: EncoderGraph, x: str) -> str:
    return graph.op("Mul", x, graph.op("Sigmoid", x))


Activation = Callable[[EncoderGraph, str], str]
_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "gelu": _gelu,
        "gelu_python": _gelu,
        "gelu_new": _gelu_by_tanh,
        "gelu_fast": _gelu_by_tanh,
        "gelu_pytorch_tanh": _gelu_by_tanh,
        "quick_gelu": _quick_gelu,
        "relu": lambda graph, x: graph.op("Relu", x),
        "silu": _silu,
        "swish": _silu,
        "tanh": lambda graph, x: graph.op("Tanh", x),
    }
)
"""By transformers' names."""


def activation_of(name: str) -> Activation:
    """The activation of this name in transformers.

    Raises:
        NotDefinedError: it is another one.
    """
    if name not in _ACTIVATIONS:
        raise NotDefinedError(f"the activation is {name[:60]!r}, and {', '.join(_ACTIVATIONS)} alone are known")
    return _ACTIVATIONS[name]


def activation(keys: Keys, *names: str, default: str | None) -> Activation:
    """The activation that config.json names."""
    return activation_of(keys.text(*names, default=default))


@dataclass(frozen=True)
class FeedForward:
    """down(active(up(x))), or with a gate down(active(gate(x)) * up(x))."""

    up: Linear
    active: Activation
    down: Linear
    gate: Linear | None = None

    def apply(self, graph: EncoderGraph, x: str) -> str:
        """The network of x [B, S, E]."""
        with graph.scope("feed_forward"):
            hidden = self.up.apply(graph, x)
            if self.gate is None:
                return self.down.apply(graph, self.active(graph, hidden))
            return self.down.apply(graph, graph.op("Mul", self.active(graph, self.gate.apply(graph, x)), hidden))


def add(graph: EncoderGraph, *terms: str) -> str:
    """The sum of all."""
    total = terms[0]
    for term in terms[1:]:
        total = graph.op("Add", total, term)
    return total


def words(graph: EncoderGraph, table: Weight) -> str:
    """Rows of the table [V, E] by input_ids: [B, S, E]."""
    return graph.words(table)


def types(graph: EncoderGraph, table: Weight) -> str:
    """Rows of the table [N, E] by token_type_ids: [B, S, E]; where these are no input, row 0 [1, E] for all."""
    if TYPES in graph.inputs:
        return graph.op("Gather", graph.weight(table), TYPES)
    return graph.weight(table.rows(0, 1))


def position_rows(graph: EncoderGraph, table: Weight) -> str:
    """Rows 0 to S - 1 of the table [P, E]: [1, S, E]."""
    numbers = graph.unsqueeze(graph.positions(), 0)
    return graph.op("Gather", graph.weight(table), numbers)


def counted_positions(graph: EncoderGraph, table: Weight, padding: int) -> str:
    """Rows of the table [P, E] by position among the ids other than `padding`, from `padding` + 1 on: [B, S, E]."""
    is_token = graph.op("Not", graph.op("Equal", IDS, padding))
    ones = graph.op("Cast", is_token, to=7)
    counts = graph.op("Mul", graph.op("CumSum", ones, 1), ones)
    return graph.op("Gather", graph.weight(table), graph.op("Add", counts, padding))
