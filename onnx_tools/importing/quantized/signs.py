# SPDX-License-Identifier: Apache-2.0
"""Tells which tensors may hold numbers below zero, as far as nodes and constants tell.

onnxruntime's quantiser takes a Relu out where the QuantizeLinear after it cuts off numbers below zero anyway. Whoever
takes that node out as well has to put the Relu back, unless there is nothing to cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, NodeProto

from ...analysis import OPERATORS, Movement, moving
from ...files import Array
from .constants import FLOATS, Constants
from .rounding_nodes import dequantizes, quantizes

_HAND_ON = moving(*Movement) - {"Cast", "Concat"} | {
    "GatherElements", "GatherND", "Dropout", "ReduceMean", "ReduceMax", "ReduceMin",
}  # fmt: skip
"""Operators whose results lie between the smallest and the largest number of their first input."""
_SIZES = ("Shape", "Size")  # weights have no influence on their results
_MOST_DEPTH = 64


class Signs:
    """The signs of one model's tensors. Those computed without weights (masks, positions) count as not below zero.

    Args:
        model: its nodes are sorted.
        constants: the model's.
        weight_of: gives the numbers that a DequantizeLinear of a weight makes; None for others.
        cuts: tells whether a DequantizeLinear makes nothing below zero.
    """

    def __init__(
        self,
        model: ModelProto,
        constants: Constants,
        weight_of: Callable[[NodeProto], Array | None],
        cuts: Callable[[NodeProto], bool],
    ) -> None:
        self._constants, self._weight_of, self._cuts = constants, weight_of, cuts
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._least_by_name = dict[str, float]()
        self._of_weights = set[str]()
        for node in model.graph.node:
            if node.op_type in _SIZES:
                continue
            if any(name in self._of_weights or self._is_weight(node, name) for name in node.input):
                self._of_weights.update(node.output)

    def may_be_negative(self, name: str) -> bool:
        """Whether a tensor is computed with weights, and not known to have no numbers below zero."""
        return name in self._of_weights and self._least(name, 0) < 0

    def _is_weight(self, node: NodeProto, name: str) -> bool:
        is_array = self._constants.count(name) > 1
        return is_array and (self._constants.kind(name) in FLOATS or dequantizes(node))

    def _least(self, name: str, depth: int) -> float:
        """A lower bound of the tensor's numbers; -inf where none is known."""
        if name not in self._least_by_name:
            least = -math.inf if depth > _MOST_DEPTH else self._computed_least(name, depth + 1)
            self._least_by_name[name] = -math.inf if math.isnan(least) else least
        return self._least_by_name[name]

    def _computed_least(self, name: str, depth: int) -> float:
        values = self._constants.array(name)
        node = self._makers.get(name)
        if values is None and node is not None and dequantizes(node):
            values = self._weight_of(node)
        if values is not None:
            return float(np.min(values.astype(np.float64), initial=math.inf))
        if node is None or name not in self._of_weights:
            return 0.0
        first = self._least(node.input[0], depth)
        if quantizes(node) or node.op_type in _HAND_ON:
            return first
        if dequantizes(node):
            return 0.0 if self._cuts(node) else first
        record = OPERATORS.get(node.op_type)
        if record is not None and record.least is not None:
            return record.least
        if node.op_type in ("Cast", "CastLike"):  # it may turn numbers above zero into zero
            return min(first, 0.0)
        if node.op_type == "ReduceSum":
            return 0.0 if first >= 0 else -math.inf
        return self._of_several(node, [self._least(item, depth) for item in node.input if item])

    def _of_several(self, node: NodeProto, least: Sequence[float]) -> float:
        """The bound that follows from those of a node's inputs."""
        positive = all(item >= 0 for item in least)
        if node.op_type == "Add":
            return sum(least)
        if node.op_type == "Where":
            return min(least[1:])
        if node.op_type == "Max" or (node.op_type == "Clip" and len(node.input) > 1 and node.input[1]):
            return max(least[:2])
        if node.op_type in ("Concat", "Min"):
            return min(least)
        if node.op_type == "Mul" and node.input[0] == node.input[1]:
            return 0.0
        if node.op_type == "Pow" and not positive:
            power = self._constants.array(node.input[1])
            return 0.0 if power is not None and power.size == 1 and float(power.ravel()[0]) % 2 == 0 else -math.inf
        return 0.0 if positive and node.op_type in ("Pow", "Mul", "Div", "MatMul", "Sum") else -math.inf
