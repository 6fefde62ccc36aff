# SPDX-License-Identifier: Apache-2.0
"""Random encoders made of operators that layout rules know, do not know, or must not let through."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from tests.support.encoder import HEADS, HIDDEN, EncoderBuilder

from .hostile_operations import HOSTILE
from .token_operations import TOKEN_OPERATIONS

SIZE = HIDDEN // HEADS
Step = tuple[int, int, int]  # which operation, and which tensors it takes: any numbers will do


class RandomGraph(EncoderBuilder):
    """An encoder whose tokens [B,S,E] go through a list of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = [self.embedding()]
        self.tokens.append(self.layer(self.tokens[0], self.padding_mask()))
        self.reads_first = False

    def mask(self) -> str:
        """float [B,S,1]."""
        return self.op("Cast", self.op("Unsqueeze", "attention_mask", self.axes(2)), to=TensorProto.FLOAT)

    def reshape(self, x: str, *sizes: int) -> str:
        return self.op("Reshape", x, self.axes(*sizes))

    def pool(self, x: str) -> str:
        """Masked mean, [B,1,E]."""
        mask = self.mask()
        total = self.op("ReduceSum", self.op("Mul", x, mask), self.axes(1), keepdims=1)
        count = self.op("ReduceSum", mask, self.axes(1), keepdims=1)
        return self.op("Div", total, self.op("Clip", count, self.constant(1e-9)))

    def positions(self) -> str:
        """float [1,S,1]."""
        length = self.op("Squeeze", self.op("Shape", "input_ids", start=1))
        steps = self.op("Range", self.constant(0, np.int64), length, self.constant(1, np.int64))
        return self.op("Cast", self.op("Unsqueeze", steps, self.axes(0, 2)), to=TensorProto.FLOAT)

    def run(self, steps: Sequence[Step]) -> None:
        for operation, first, second in steps:
            x, y = (self.tokens[-1 - number % len(self.tokens)] for number in (first, second))
            self.tokens.append(OPERATIONS[NAMES[operation % len(NAMES)]](self, x, y))

    def finish(self, outputs: int, pooling: int) -> ModelProto:
        """The model; its outputs are its last tokens, and one of several poolings of them."""
        last = self.op("Tanh", self.op("Add", self.tokens[-1], self.tokens[1]))
        shapes: dict[str, list[object]] = {}
        if outputs % 3 != 1:
            self.op("Identity", last, output="tokens")
            shapes["tokens"] = ["batch", "sequence", HIDDEN]
        if outputs % 3 != 0:
            pools = (self._first, lambda x: self.op("Squeeze", self.pool(x), self.axes(1)), self._largest)
            self.op("Identity", pools[pooling % 3](last), output="pooled")
            shapes["pooled"] = ["batch", HIDDEN]
        return self.model(shapes)

    def _first(self, x: str) -> str:
        self.reads_first = True
        return self.op("Gather", x, self.constant(0, np.int64), axis=1)

    def _largest(self, x: str) -> str:
        kept = self.op("Cast", self.mask(), to=TensorProto.BOOL)
        return self.op("ReduceMax", self.op("Where", kept, x, self.constant(-1e9)), axes=[1], keepdims=0)


def _heads_and_back(b: RandomGraph, x: str, y: str) -> str:
    """Element-wise work on [B,H,S,D], with a row for each head."""
    heads = b.op("Transpose", b.reshape(x, 0, 0, HEADS, SIZE), perm=[0, 2, 1, 3])
    other = b.op("Transpose", b.reshape(y, 0, 0, HEADS, SIZE), perm=[0, 2, 1, 3])
    scaled = b.op("Mul", heads, b.constant(np.linspace(0.5, 1.5, HIDDEN).reshape(1, HEADS, 1, SIZE)))
    return b.reshape(b.op("Transpose", b.op("Add", scaled, other), perm=[0, 2, 1, 3]), 0, 0, HIDDEN)


def _rotary(b: RandomGraph, x: str, _: str) -> str:
    angles = b.op("Mul", b.positions(), b.constant(np.linspace(0.1, 1.0, HIDDEN)))
    half = HIDDEN // 2
    low, high = (
        b.op("Slice", x, b.axes(start), b.axes(start + half), b.axes(2)) for start in (0, half)
    )  # fmt: skip
    rotated = b.op("Concat", b.op("Neg", high), low, axis=-1)
    return b.op("Add", b.op("Mul", x, b.op("Cos", angles)), b.op("Mul", rotated, b.op("Sin", angles)))


def _square_root_norm(b: RandomGraph, x: str, _: str) -> str:
    mean = b.op("ReduceMean", b.op("Mul", x, x), axes=[-1], keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(1e-6)))
    return b.op("Mul", b.op("Div", x, root), b.weight(HIDDEN, center=1.0))


OPERATIONS: Mapping[str, Callable[[RandomGraph, str, str], str]] = MappingProxyType(
    {
        "layer": lambda b, x, _: b.layer(x, b.padding_mask()),
        "add": lambda b, x, y: b.op("Add", x, y),
        "linear": lambda b, x, _: b.linear(x, HIDDEN, HIDDEN),
        "norm": lambda b, x, y: b.norm(b.op("Add", x, y)),
        "tanh": lambda b, x, _: b.op("Tanh", x),
        "softmax": lambda b, x, _: b.op("Softmax", x, axis=-1),
        "gate": lambda b, x, y: b.op("Mul", b.op("Sigmoid", x), y),
        "heads": _heads_and_back,
        "rotary": _rotary,
        "rms": _square_root_norm,
        "sum over E": lambda b, x, y: b.op("Add", y, b.op("ReduceSum", x, b.axes(2), keepdims=1)),
        "cumulative over E": lambda b, x, _: b.op("CumSum", x, b.constant(2, np.int64)),
        "masked": lambda b, x, _: b.op("Mul", x, b.mask()),
        "filled": lambda b, x, _: b.op("Where", b.op("Cast", b.mask(), to=TensorProto.BOOL), x, b.constant(3.0)),
        "mean": lambda b, x, y: b.op("Add", y, b.pool(x)),
        "positions": lambda b, x, _: b.op("Mul", x, b.op("Sin", b.positions())),
        **HOSTILE,
        **TOKEN_OPERATIONS,
    }
)
NAMES = tuple(OPERATIONS)
MASK, STRONGER = -1e4, -1e30


def with_stronger_masks(model: ModelProto) -> ModelProto:
    """The same model with masks that no score exceeds: -1e4 does not hide padding from scores of that size."""
    copy = ModelProto.FromString(model.SerializeToString())
    for tensor in copy.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.size and (values == MASK).all():
            tensor.CopyFrom(numpy_helper.from_array(np.full_like(values, STRONGER), tensor.name))
    return copy


def describe(steps: Sequence[Step]) -> str:
    """The operations of a program with the tensors that they take: 0 is the embedding, 1 the first layer, and so on."""
    lines = []
    for count, (operation, first, second) in enumerate(steps, 2):
        x, y = (count - 1 - number % count for number in (first, second))
        lines.append(f"{count} = {NAMES[operation % len(NAMES)]}({x}, {y})")
    return "; ".join(lines) or "one layer alone"


def parse(text: str) -> list[Step]:
    """Parses a program from the text that `describe` gives."""
    match = re.findall(r"(\d+) = ([^(;]+)\((\d+), (\d+)\)", text)
    return [(NAMES.index(name), int(count) - 1 - int(x), int(count) - 1 - int(y)) for count, name, x, y in match]
