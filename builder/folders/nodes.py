# SPDX-License-Identifier: Apache-2.0
"""Adds nodes to a model's message, as its version of the standard operators wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

_AXES_ARE_INPUTS = {"ReduceSum": 13, "ReduceMax": 18, "ReduceL2": 18, "ReduceMean": 18, "Unsqueeze": 13, "Squeeze": 13}
"""Operator -> the version from which its axes are an input."""
_PREFIX = "padfree_head"


class Nodes:
    """Writes nodes after those of a model; every method returns the name of what it computes."""

    def __init__(self, model: ModelProto) -> None:
        self._graph = model.graph
        self.opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
        outputs = {name for node in model.graph.node for name in node.output}
        self._used_names = outputs | {item.name for item in (*model.graph.input, *model.graph.initializer)}
        self._number = 0

    def node(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """One node of the standard operators with one output."""
        name = output or self._name(op.lower())
        self._graph.node.append(helper.make_node(op, inputs, [name], name=f"{_PREFIX}/{name}", **attributes))
        return name

    def constant(self, values: npt.ArrayLike, dtype: Any = np.float32) -> str:
        """An initializer."""
        name = self._name("constant")
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def along(self, op: str, x: str, axes: Sequence[int], **attributes: Any) -> str:
        """An operator that takes axes."""
        if self.opset >= _AXES_ARE_INPUTS[op]:
            return self.node(op, x, self.constant(axes, np.int64), **attributes)
        return self.node(op, x, axes=list(axes), **attributes)

    def at_least(self, x: str, low: float) -> str:
        """Elements of x, none below a number."""
        if self.opset >= 11:
            return self.node("Clip", x, self.constant(low))
        return self.node("Clip", x, min=low)

    def to_float(self, x: str) -> str:
        """x in float32."""
        return self.node("Cast", x, to=TensorProto.FLOAT)

    def gelu(self, x: str) -> str:
        """x * (1 + erf(x / sqrt(2))) / 2."""
        scaled = self.node("Div", x, self.constant(np.sqrt(2)))
        risen = self.node("Add", self.node("Erf", scaled), self.constant(1))
        return self.node("Mul", self.node("Mul", x, risen), self.constant(0.5))

    def log1p(self, x: str) -> str:
        """log(1 + x)."""
        return self.node("Log", self.node("Add", x, self.constant(1)))

    def activation(self, name: str, x: str) -> str:
        """One of padfree.builder.folders.head.ACTIVATIONS."""
        if name == "identity":
            return x
        if name == "gelu":
            return self.gelu(x)
        if name == "silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        if name == "softmax":
            return self.node("Softmax", x, axis=-1)
        return self.node({"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}[name], x)

    def _name(self, stem: str) -> str:
        while (name := f"{_PREFIX}_{stem}_{self._number}") in self._used_names:
            self._number += 1
        self._number += 1
        self._used_names.add(name)
        return name
